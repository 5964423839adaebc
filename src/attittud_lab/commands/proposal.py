"""A first configuration for somebody's data, with the reason beside each chosen number."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attittud_lab.config.data import AuxiliaryConfig, DataConfig, PrimaryConfig, SourceConfig
from attittud_lab.data.parts import VALIDATION, Part, Parts, chosen, read_parts
from attittud_lab.data.prepare import Pixels
from attittud_lab.data.source import Listing, Rows, open_listing, open_source
from attittud_lab.errors import InputError

GROUPS = ("patient", "patient_id", "subject", "author", "user")
"""Columns that a first configuration splits by."""


@dataclass
class Look:
    """What a first look at a source tells."""

    path: str
    listing: Listing
    rows: Rows
    classes: list[str]
    splits: list[str]
    size: int | None
    groups: list[str]
    """The column that tells whose examples they are, if there is one."""

    def about(self) -> str:
        kind = "labels" if self.listing.multi_label else "classes"
        labels = f"{len(self.classes)} {kind}" if self.classes else "no labels"
        size = f", {self.size} pixels" if self.size else ""
        own = f", splits {', '.join(self.splits)}" if self.splits else ""
        return f"{len(self.rows)} {self.listing.kind}s{size}, {labels}{own}"


def look(path: str, config: SourceConfig, *, primary: bool) -> Look:
    source = open_source(config)
    split = "train" if "train" in source.splits else None
    listing = open_listing(config, source, split)
    labelled = primary or listing.labels is not None
    rows, _, classes = chosen(listing, config, labelled=labelled)
    if not len(rows) and not primary:
        rows, _, classes = chosen(listing, config, labelled=False)  # a label column with nothing in it
    size = Pixels.common([Part(listing, rows, None)], None).size if listing.kind == "image" else None
    groups = [name for name in source.columns(split) if name in GROUPS][:1]
    return Look(path, listing, rows, classes, source.splits, size, groups)


def absolute(path: str) -> str:
    """A configuration may not leave its folder by `..`; what was typed on a command line is meant."""
    return str(Path(path).resolve()) if ".." in Path(path).parts else path


def propose(kind: str | None, primary: str, auxiliary: Sequence[str]) -> str:
    """YAML with comments; it can be trained as it is. Without a kind it is that of the primary source."""
    primary, auxiliary = absolute(primary), [absolute(path) for path in auxiliary]
    first = look(primary, PrimaryConfig(path=primary), primary=True)
    others = {name: look(path, AuxiliaryConfig(path=path), primary=False) for name, path in _named(auxiliary).items()}
    kind = kind or first.listing.kind
    for found in (first, *others.values()):
        if found.listing.kind != kind:
            raise InputError(
                f"{found.path}: holds {found.listing.kind}s, not {kind}s; use `attittud init {found.listing.kind}`"
            )
        if not found.classes and kind == "image":
            raise InputError(
                f"{found.path}: images need labels; sort them into one folder per class, or add a label column"
            )
    own_test = "test" in first.splits
    own_validation = any(name in first.splits for name in VALIDATION)
    train = 0.2 if any(found.path == primary for found in others.values()) else None
    data = DataConfig(
        primary=PrimaryConfig(
            path=primary,
            train=train,
            validation=None if own_validation else 0.2,
            test=None if own_test else 0.2,
            group=next(iter(first.groups), None),
        ),
        auxiliary={
            name: AuxiliaryConfig(path=found.path, objective="classify" if found.classes else "masked_lm")
            for name, found in others.items()
        },
    )
    parts = read_parts(data, 0)  # refuses what cannot be trained
    left = len(parts.primary["train"].rows)
    batch = min(32, left)
    largest = max([len(part.rows) for part, _ in parts.auxiliary.values()], default=left)
    model, lr, reason = _model(kind, first, largest)
    steps = max(200, min(5000, 20 * largest // 64))
    finetune = max(100, min(2000, int(50 * left / batch)))
    rank = 5 if left < 200 else 10
    rate = "the paper has 1e-4 for its residual network" if lr == "1e-4" else "usual for Adam on small networks"
    lines = [
        f"# Primary: {first.about()}.",
        *(f"# Auxiliary {name}: {found.about()}." for name, found in others.items()),
        "# Train with `attittud train` and this file; any setting can be changed by key=value behind it.",
        "data:",
        "  primary:",
        f"    path: {_text(primary)}",
        *_splits(own_validation, own_test, train),
        *(
            f"    group: {name}  # split at random, it would be tested on examples of those it knows"
            for name in first.groups
        ),
        "  auxiliary:" if others else "  auxiliary: {}  # none given: only strategy: primary_only can be trained",
    ]
    for name, found in others.items():
        lines += [f"    {name}:", f"      path: {_text(found.path)}"]
        if not found.classes:
            lines.append("      objective: masked_lm  # there are no labels, so its words are to be predicted")
    lines += [
        "model:",
        f"  name: {model}  # {reason}",
        "training:",
        "  mode: two_phase  # auxiliary data guided by the primary task, then the primary task alone",
        *(
            ["  metric: macro_f1  # chooses the model; rare classes count in it as much as common ones"]
            if kind == "text" and not parts.primary["train"].listing.multi_label
            else []
        ),
        "  guided:",
        f"    steps: {steps}  # about 20 passes over the largest auxiliary source, between 200 and 5000",
        "    batch_size: 64  # examples of each auxiliary source in a step",
        f"    primary_batch: {batch}  # at most 32, and no more than the {left} training examples",
        f"    lr: {lr}  # {rate}",
        "  finetune:",
        f"    steps: {finetune}  # about 50 passes over the primary set, between 100 and 2000",
        f"    primary_batch: {batch}  # as above",
        "    lr: 1e-4  # small: a large one destroys what the guided phase has learned",
        "    patience: 10  # stop after 10 evaluations without improvement",
        *_strategy(parts),
        f"  rank: {rank}  # few primary examples span few reliable directions"
        if rank == 5
        else f"  rank: {rank}  # the usual value",
        "  refresh_every: 10  # the paper's choice for images; 4 for text costs more and follows faster"
        if kind == "image"
        else "  refresh_every: 4  # the paper's choice for text",
        *(
            ["  exclude: ['*embedding*']  # not decomposed: the paper leaves word embeddings out"]
            if kind == "text"
            else []
        ),
        "seed: 0  # any number; `attittud compare` takes several, as one alone decides nothing",
        "output: runs  # run folders go below it",
    ]
    return "\n".join(lines) + "\n"


def _strategy(parts: Parts) -> list[str]:
    if not parts.auxiliary:
        return ["strategy:", "  name: primary_only  # there are no auxiliary data"]
    return [
        "strategy:",
        "  name: auto  # every part of a gradient earns its weight; `attittud compare` tells whether that pays",
    ]


def _splits(own_validation: bool, own_test: bool, train: float | None) -> list[str]:
    """Fractions where the source has no split of its own."""
    return [
        "    validation: null  # the source has its own split"
        if own_validation
        else "    validation: 0.2  # chooses the model; up to 64 of these at a time judge the auxiliary data (strategy auto)",
        "    test: null  # the source has its own split" if own_test else "    test: 0.2  # read once, at the end",
        "    train: null  # all that is left"
        if train is None
        else f"    train: {train}  # the rest of it is auxiliary data",
    ]


def _model(kind: str, first: Look, largest: int) -> tuple[str, str, str]:
    if kind == "text":
        return "text-cnn", "1e-3", "needs no download; hf:FOLDER of a pretrained network will do better"
    size = first.size or 0
    if size < 16:
        return "mlp", "1e-3", f"images of {size} pixels need no convolutions"
    if size >= 96:
        return "resnet-18", "1e-4", f"for images of {size} pixels"
    if largest >= 5000:
        return "wideresnet-22-4", "1e-4", "the paper's network; small-cnn is many times faster without a GPU"
    return "small-cnn", "1e-3", f"{largest} auxiliary examples are too few for a deep network"


def _named(paths: Sequence[str]) -> dict[str, str]:
    """A name for each path that can be part of a metric's name."""
    names: dict[str, str] = {}
    for path in paths:
        stem = re.sub(r"\W+", "_", Path(path.removeprefix("hf:")).stem).strip("_") or "source"
        name = f"_{stem}" if stem[0].isdigit() or stem == "primary" else stem
        while name in names:
            name += "_"
        names[name] = path
    return names


def _text(value: Any) -> str:
    """Quoted, so that no path can be taken for something else."""
    return json.dumps(str(value), ensure_ascii=False)
