"""A first configuration for somebody's data, with the reason for each chosen number."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attittud_lab.config.load import loads
from attittud_lab.config.options import meant
from attittud_lab.config.schema import AuxiliaryConfig, PrimaryConfig, SourceConfig, TableConfig
from attittud_lab.data.cells import cells_are_text
from attittud_lab.data.features import Column, is_numbered
from attittud_lab.data.folder import ImageFolder
from attittud_lab.data.images import Pixels, look_at
from attittud_lab.data.part import Part, select_rows
from attittud_lab.data.parts import Parts, read_parts
from attittud_lab.data.primary import VALIDATION
from attittud_lab.data.source import Listing, Source, open_listing, open_source
from attittud_lab.data.texts import check_texts
from attittud_lab.errors import InputColumnError, InputError, counted, listed, short

GROUPS = ("patient", "patient_id", "subject", "author", "user")
"""Columns whose values a first configuration keeps together in one split."""
WARNING = "# Warning: "
_SHOWN = 20
"""Classes that a comment names."""
_NOUNS = {"image": "image", "text": "text", "table": "row"}
"""What an example is called, by the kind of data."""


@dataclass
class Look:
    """What a first look at a source finds."""

    config: SourceConfig
    listing: Listing
    part: Part
    classes: dict[str, int]
    """How many examples each class has."""
    splits: list[str]
    size: int | None
    """The shorter side of images."""
    group: str | None
    """The column that says to whom an example belongs, if there is one."""
    nested: list[str]
    """Class folders with subfolders, whose images count as examples of the class."""

    def shares_head(self, primary: Look) -> bool:
        """Whether it can use the primary output layer; the order of the classes does not matter."""
        same_classes = self.classes.keys() == primary.classes.keys()
        return same_classes and self.listing.multi_label == primary.listing.multi_label

    def about(self, name: str) -> list[str]:
        """Comments for the head of a configuration."""
        facts = [counted(len(self.part.rows), _NOUNS[self.listing.kind])]
        if self.size:
            facts.append(f"shorter side {self.size} pixels")
        if not self.classes:
            facts.append("no labels")
        elif self.listing.multi_label:
            facts.append(counted(len(self.classes), "label"))
        else:
            facts.append(counted(len(self.classes), "class", "classes"))
        if self.splits:
            facts.append(f"splits {', '.join(self.splits)}")
        lines = [f"# {name}: {', '.join(facts)}."]
        if self.classes:
            counts = [f"{_visible(label)} ({count})" for label, count in self.classes.items()]
            if len(counts) > _SHOWN:
                counts[_SHOWN:] = ["..."]
            lines.append(f"#   {', '.join(counts)}")
        if self.nested:
            folder = _visible(str(Path(self.config.path, self.nested[0])), 200)
            lines.append(
                f"{WARNING}some class folders ({len(self.nested)}) contain folders; if those are "
                f"the classes, the path is one level too high: give {folder}."
            )
        return lines


# --------------------------------------------------------------------------------- look at the data


def propose(
    kind: str | None,
    primary: str,
    auxiliary: Sequence[str],
    input_column: str | None = None,
    label_column: str | None = None,
) -> str:
    """Return commented YAML that is ready to train.

    Without a kind, the primary source decides; a file with neither images nor texts is a table. The
    columns apply to the primary source, and to the other sources that have them. With the kind
    "table", the input column is the only feature.
    """
    table = None
    if kind == "table":
        table = TableConfig()
        if input_column is not None:
            table = TableConfig(columns=[input_column])
        input_column = None  # `table` has it
    columns: dict[str, Any] = {"input": input_column, "label": label_column}
    source = PrimaryConfig(path=primary, **columns)
    try:
        first = look(source, table)
    except InputColumnError:  # no column is named, and none looks like images or texts
        if kind is not None:
            raise
        kind = "table"
        table = TableConfig()
        first = look(source, table)
    others = {}
    for name, path in _named(auxiliary).items():
        others[name] = look(AuxiliaryConfig(path=path, **columns), table)
    kind = kind or first.listing.kind
    for source_look in (first, *others.values()):
        _check(source_look, kind, label_column)
    data = _data_lines(first, others)
    if table is not None:
        data += _table_lines(first, others, table)
    parts = read_parts(loads("\n".join(data)).data, 0)  # refuses data that cannot be trained on
    lines = first.about("Primary")
    for name, other in others.items():
        lines += other.about(f"Auxiliary {name}")
    lines.append(
        "# Train with `attittud train` and this file. To change a setting for one run, add "
        "key=value to the command."
    )
    return "\n".join([*lines, *data, _settings(kind, first, parts)])


def look(config: SourceConfig, table: TableConfig | None) -> Look:
    """Read what a source holds, or its split `train`, if it has one.

    Columns that an auxiliary source does not have are left out of its configuration. A folder whose
    only class is a folder of folders is refused.
    """
    source = open_source(config.path)
    split = None
    if "train" in source.splits:
        split = "train"
    columns = source.columns(split)
    if not isinstance(config, PrimaryConfig):
        if config.input not in columns:
            config = replace(config, input=None)
        if config.label not in columns:
            config = replace(config, label=None)
    try:
        listing, part = _read(config, source, split, table)
    except InputError as error:  # there is no configuration yet, so options replace its settings
        text = str(error).replace("with input:", "with --input")
        raise type(error)(text.replace("with label:", "with --label")) from None
    nested = []
    if isinstance(source, ImageFolder):
        nested = _nested(source.root / (split or ""), part.classes)
    if nested and len(part.classes) == 1:
        reason = f"its only class, {nested[0]!r}, is a folder of folders"
        raise InputError(f"{config.path}: {reason}; did you mean {Path(config.path, nested[0])}?")
    size = None
    if listing.kind == "image":
        size = Pixels.common([look_at(part)], None).size
    group = next((name for name in columns if name in GROUPS), None)
    return Look(config, listing, part, _counts(part), source.splits, size, group, nested)


def _read(
    config: SourceConfig, source: Source, split: str | None, table: TableConfig | None
) -> tuple[Listing, Part]:
    """Return all examples of a split and those that take part. A primary source needs labels; an
    auxiliary source without any takes part as a whole.
    """
    primary = isinstance(config, PrimaryConfig)
    listing = open_listing(config, source, split, table)
    part = select_rows(listing, config, labelled=primary or listing.labels is not None)
    if not len(part.rows) and not primary:
        part = select_rows(listing, config, labelled=False)  # the label column is empty
    if listing.kind == "text":
        check_texts(list(map(str, part.raws())), listing.where)
    return listing, part


def _counts(part: Part) -> dict[str, int]:
    """Return how many examples each class has; empty without labels."""
    if part.labels is None:
        return {}
    if part.labels.ndim == 2:
        counts = part.labels.sum(0)
    else:
        counts = np.bincount(part.labels, minlength=len(part.classes))
    return dict(zip(part.classes, counts.tolist(), strict=True))


def _nested(root: Path, classes: Sequence[str]) -> list[str]:
    """Return the class folders that hold folders."""
    nested = []
    for name in classes:
        entries = (root / name).iterdir()
        if any(entry.is_dir() and not entry.name.startswith(".") for entry in entries):
            nested.append(name)
    return nested


def _check(source_look: Look, kind: str, label_column: str | None) -> None:
    """Refuse a source of another kind, and one without labels that needs some.

    Texts need none: a network can predict masked words.
    """
    path = source_look.config.path
    kind_here = source_look.listing.kind
    if kind_here != kind:
        raise InputError(
            f"{path}: holds {kind_here}s, not {kind}s; use `attittud init {kind_here}`"
        )
    if not source_look.classes and kind == "image":
        advice = "sort them into one folder per class, or add a label column"
        raise InputError(f"{path}: images need labels; {advice}")
    if not source_look.classes and kind == "table":
        label = label_column or "label"
        columns = source_look.listing.tables[0].column_names
        reason = f"a table needs labels, and it has no column {label!r}{meant(label, columns)}"
        advice = f"name one of {listed(columns)} with --label, the same in every source"
        raise InputError(f"{path}: {reason}; {advice}")


def _named(paths: Sequence[str]) -> dict[str, str]:
    """Return the paths by name. A name comes from the path, can be part of a metric's name, and is
    not used twice.
    """
    names: dict[str, str] = {}
    for path in paths:
        name = re.sub(r"\W+", "_", Path(path.removeprefix("hf:")).stem).strip("_") or "source"
        if name[0].isdigit() or name == "primary":
            name = f"_{name}"
        while name in names:
            name += "_"
        names[name] = path
    return names


def _visible(text: str, most: int = 40) -> str:
    """Make a text safe for a comment, which ends with its line."""
    return short(re.sub(r"[^\x20-\x7e\xa1-\ufffd]", "?", text), most)


# ------------------------------------------------------------------------------------- data section


def _data_lines(first: Look, others: dict[str, Look]) -> list[str]:
    """Return the section `data:`, with the share of each split of the primary source."""
    from_source = "null  # the source has its own split"
    validation = "0.2  # these examples choose the model; a portfolio holds out folds instead"
    if not set(VALIDATION).isdisjoint(first.splits):
        validation = from_source
    test = "0.2  # used once, for the final score"
    if "test" in first.splits:
        test = from_source
    train = "null  # all that is left"
    if any(other.config.path == first.config.path for other in others.values()):
        train = "0.2  # the rest of this source is auxiliary data"
    lines = ["data:", "  primary:", *_source_lines(first.config, 4)]
    lines += [f"    validation: {validation}", f"    test: {test}", f"    train: {train}"]
    if first.group:
        lines.append(f"    group: {first.group}  # rows with the same value stay in one split")
    if not others:
        return [*lines, "  auxiliary: {}"]
    lines.append("  auxiliary:")
    for name, other in others.items():
        lines += [f"    {name}:", *_source_lines(other.config, 6)]
        if not other.classes:
            lines.append("      objective: masked_lm  # no labels: the model predicts masked words")
        elif other.shares_head(first):
            lines.append("      share_head: true  # it has the primary classes")
    return lines


def _source_lines(source: SourceConfig, indent: int) -> list[str]:
    """Return the path and the columns of a source in quotes, so that no path can be taken for
    something else.
    """
    lines = []
    for name in ("path", "input", "label"):
        text = getattr(source, name)
        if text is not None:
            lines.append(f"{' ' * indent}{name}: {json.dumps(text, ensure_ascii=False)}")
    return lines


def _table_lines(first: Look, others: dict[str, Look], config: TableConfig) -> list[str]:
    """Return lines that say which columns are features, with a reason for each that is not."""
    lines = ["  kind: table", "  table:"]
    if config.columns is not None:
        names = json.dumps(config.columns, ensure_ascii=False)
        return [*lines, f"    columns: {names}  # the features"]
    lines.append("    categorical: []  # columns whose numbers are only names, such as postcodes")
    left_out = _left_out(first, others, config)
    if not left_out:
        return [*lines, "    exclude: []  # columns that are not features"]
    lines.append("    exclude:")
    for name, reason in left_out.items():
        quoted = json.dumps(name, ensure_ascii=False)
        lines.append(f"      - {quoted}  # {_visible(reason, 100)}")
    return lines


def _left_out(first: Look, others: dict[str, Look], config: TableConfig) -> dict[str, str]:
    """Return the columns that are not features, each with the reason: the group, columns that not
    every source has, and columns of the primary source whose values are no features.
    """
    tables = [look.listing.tables[0] for look in (first, *others.values())]
    left_out = {}
    if first.group in tables[0].column_names:
        left_out[str(first.group)] = "says to whom an example belongs"
    for table in tables:
        for name in table.column_names:
            if not all(name in other.column_names for other in tables):
                left_out.setdefault(name, "not in every source")
    rows = tables[0].take(first.part.rows)
    guess = cells_are_text(tables[0])
    for name in rows.column_names:
        reason = _no_feature(name, rows[name], first.config.path, config, guess=guess)
        if reason is not None:
            left_out.setdefault(name, reason)
    return left_out


def _no_feature(
    name: str, values: Any, path: str, config: TableConfig, *, guess: bool
) -> str | None:
    """Return why the values of a column are no feature; None if they are one."""
    try:
        column = Column.fit(name, values, config, path, guess=guess)
    except InputError as error:
        # The error says "PATH: column NAME has ...; do ...": the reason is in the middle.
        return str(error).partition(f"column {name!r} ")[2].partition("; ")[0]
    if isinstance(column, str):
        return column.replace("training examples", "rows")
    if is_numbered(values, guess=guess):
        return "rises or falls from row to row, like a row number"
    return None


# ----------------------------------------------------------------------------- model and training


_TRAINING = """\
{networks}model:
  name: {model}
training:
  mode: two_phase  # guided: primary and auxiliary data together; then finetune: primary data alone
{metric}  guided:
    steps: {guided}  # about 20 passes over {passes}, but at least 200 and at most 5000
{auxiliary_batch}    primary_batch: {batch}  # primary examples in a step, out of {left} for training
    lr: {rate}
  finetune:
    steps: {finetune}  # about 50 passes over the primary training examples, but at least 100 and at most 2000
    primary_batch: {batch}  # as above
    lr: 1e-4  # small: a large rate would destroy what the guided phase learned
    patience: 10  # stop after 10 evaluations without improvement; strategy portfolio ignores this
strategy:
  name: {strategy}
  rank: {rank}
  refresh_every: {refresh}
seed: 0  # any number; `attittud compare` uses several seeds, because a single one proves nothing
output: runs  # run folders are created in it
"""
_ALONE = {
    "networks": "",
    "passes": "the training examples, 64 at a time",
    "auxiliary_batch": "",
    "strategy": "primary_only  # there are no auxiliary data",
}
_WITH_AUXILIARY = {
    "networks": "# model and training are about networks: with strategy portfolio only if "
    "portfolio.learners names network\n",
    "passes": "the largest auxiliary source",
    "auxiliary_batch": "    batch_size: 64  # examples of each auxiliary source in a step\n",
    "strategy": "portfolio  # tries several learners, keeps the best, and measures what the "
    "auxiliary data are worth",
}
_METRIC = "  metric: macro_f1  # chooses the model; rare classes count as much as common ones\n"
_REFRESH = "10  # compute these directions again every 10 steps, the usual value"
_REFRESH_TEXT = """\
4  # compute these directions again every 4 steps, as the ATTITTUD paper does for text
  exclude: ['*embedding*']  # gradients of word embeddings are not split; the paper leaves them out too"""


def _settings(kind: str, first: Look, parts: Parts) -> str:
    """Return the sections about models and training.

    `parts` says how many examples are left for training and how many the sources have.
    """
    left = len(parts.primary["train"].rows)
    largest = max([len(part.rows) for part in parts.auxiliary.values()], default=left)
    batch = min(32, left)
    texts = _ALONE
    if parts.auxiliary:
        texts = _WITH_AUXILIARY
    rank = "10  # directions in which auto compares gradients; the usual value"
    if left < 200:
        rank = "5  # directions in which auto compares gradients; few, for there are few examples"
    metric = ""
    refresh = _REFRESH
    if kind == "text":
        refresh = _REFRESH_TEXT
        if not first.listing.multi_label:
            metric = _METRIC
    model, rate = _model(kind, first.size or 0, largest)
    return _TRAINING.format(
        **texts,
        model=model,
        metric=metric,
        guided=max(200, min(5000, 20 * largest // 64)),
        batch=batch,
        left=left,
        rate=rate,
        finetune=max(100, min(2000, int(50 * left / batch))),
        rank=rank,
        refresh=refresh,
    )


def _model(kind: str, size: int, examples: int) -> tuple[str, str]:
    """Return the name of a model and a learning rate, with their reasons.

    `size` is the shorter side of images, and `examples` the number in the largest source.
    """
    usual = "1e-3  # usual for Adam on small networks"
    paper = "1e-4  # the paper uses this for its residual network"
    if kind == "text":
        reason = "needs no download; hf:FOLDER of a pretrained network will do better"
        return f"text-cnn  # {reason}", usual
    if kind == "table":
        width = 256
        if examples < 2_000:
            width = 64
        model = "table-mlp  # residual blocks with LayerNorm; mlp is a plain network"
        dropout = "0.1  # keeps the network from memorising a small table"
        return f"{model}\n  width: {width}  # units of a layer\n  dropout: {dropout}", usual
    if size < 16:
        return f"mlp  # images of {size} x {size} pixels need no convolutions", usual
    if size >= 96:
        return f"resnet-18  # for images of {size} x {size} pixels", paper
    if examples >= 5000:
        reason = "the paper's network; small-cnn is many times faster without a GPU"
        return f"wideresnet-22-4  # {reason}", paper
    return f"small-cnn  # {examples} examples are too few for a deep network", usual
