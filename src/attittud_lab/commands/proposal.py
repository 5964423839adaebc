"""A first configuration for somebody's data, with the reason for each chosen number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from attittud_lab.config.load import loads
from attittud_lab.config.options import meant
from attittud_lab.config.schema import (
    AuxiliaryConfig,
    DataConfig,
    PrimaryConfig,
    SourceConfig,
    TableConfig,
)
from attittud_lab.data.features import Column, cells_are_text, is_numbered
from attittud_lab.data.folder import ImageFolder, class_root
from attittud_lab.data.images import Pixels, look_at
from attittud_lab.data.parts import VALIDATION, Parts, chosen, read_parts
from attittud_lab.data.source import Labels, Listing, Rows, open_listing, open_source
from attittud_lab.data.texts import check_texts
from attittud_lab.errors import InputColumnError, InputError, counted, listed, short

GROUPS = ("patient", "patient_id", "subject", "author", "user")
"""Columns whose values a first configuration keeps together in one split."""
WARNING = "# Warning: "
REFUSED = f"{WARNING}`attittud train` will refuse these data as they are. "
NOT_SHARED = "not in every source"
_SHOWN = 20  # classes
_IMAGE = (
    "  refresh_every: 10  # compute these directions again every 10 steps, as the ATTITTUD paper does for images",
)
_TABLE = ("  refresh_every: 10  # compute these directions again every 10 steps, the usual value",)
_TEXT = (
    "  refresh_every: 4  # compute these directions again every 4 steps, as the ATTITTUD paper does for text",
    "  exclude: ['*embedding*']  # gradients of word embeddings are not split; the paper leaves them out too",
)


@dataclass
class Look:
    """What a first look at a source finds."""

    config: SourceConfig
    listing: Listing
    rows: Rows
    classes: dict[str, int]
    """How many examples each class has."""
    splits: list[str]
    size: int | None
    groups: list[str]
    """At most one: the column that says to whom an example belongs."""
    nested: dict[str, list[str]]
    """The subfolders of class folders, by class."""

    def shares(self, primary: Look) -> bool:
        """Whether it can use the primary output layer; the order of the classes does not matter."""
        return (
            self.classes.keys() == primary.classes.keys()
            and self.listing.multi_label == primary.listing.multi_label
        )

    def about(self, name: str) -> list[str]:
        """Comments for the head of a configuration."""
        kind = ("label", "labels") if self.listing.multi_label else ("class", "classes")
        labels = counted(len(self.classes), *kind) if self.classes else "no labels"
        size = f", shorter side {self.size} pixels" if self.size else ""
        splits = f", splits {', '.join(self.splits)}" if self.splits else ""
        noun = "row" if self.listing.kind == "table" else self.listing.kind
        lines = [f"# {name}: {counted(len(self.rows), noun)}{size}, {labels}{splits}."]
        if self.classes:
            counts = [f"{_visible(label)} ({count})" for label, count in self.classes.items()]
            more = f", and {counted(len(counts) - _SHOWN, 'other')}" if len(counts) > _SHOWN else ""
            lines.append(f"#   {', '.join(counts[:_SHOWN])}{more}")
        if self.nested:
            folder, inner = next(iter(self.nested.items()))
            lines.append(
                f"{WARNING}some of these class folders ({len(self.nested)}) contain folders, such as {_visible(folder)} with "
                f"{', '.join(map(_visible, inner[:3]))}; if those are the classes, the path is one level too high: give "
                f"{_visible(str(Path(self.config.path, folder)), 200)}."
            )
        return lines


def propose(
    kind: str | None,
    primary: str,
    auxiliary: Sequence[str],
    input_column: str | None = None,
    label_column: str | None = None,
) -> str:
    """Return commented YAML that is ready to train.

    Without a kind, the primary source decides; a file with neither images nor texts is a table. The
    columns apply to the primary source, and to the other sources that have them. In a table, the
    input column is the only feature.
    """
    if kind == "table":
        table = TableConfig(columns=None if input_column is None else [input_column])
    else:
        table = None
    named: dict[str, Any] = {"input": None if table else input_column, "label": label_column}
    source = PrimaryConfig(path=primary, **named)
    try:
        first = look(source, table)
    except InputColumnError:
        if kind is not None:
            raise
        kind, table = "table", TableConfig()
        first = look(source, table)
    others = {
        name: look(AuxiliaryConfig(path=path, **named), table)
        for name, path in _named(auxiliary).items()
    }
    kind = kind or first.listing.kind
    for opened in (first, *others.values()):
        path, kind_here = opened.config.path, opened.listing.kind
        if kind_here != kind:
            raise InputError(
                f"{path}: holds {kind_here}s, not {kind}s; use `attittud init {kind_here}`"
            )
        if not opened.classes and kind == "image":
            raise InputError(
                f"{path}: images need labels; sort them into one folder per class, or add a label column"
            )
        if not opened.classes and kind == "table":
            label = label_column or "label"
            columns = opened.listing.tables[0].column_names
            raise InputError(
                f"{path}: a table needs labels, and it has no column {label!r}{meant(label, columns) or '.'} Its columns are "
                f"{listed(columns)}. Name the column with --label, and give it the same name in every source"
            )
    data = _data_lines(first, others) + (
        [] if table is None else _table_lines(first, others, table)
    )
    config = loads("\n".join(data)).data
    parts = read_parts(config, 0)  # refuses data that cannot be trained on
    lines = [
        *first.about("Primary"),
        *(line for name in others for line in others[name].about(f"Auxiliary {name}")),
        *([] if table is None else _misspelt(first, others)),
        *(_refused(config) if first.groups and others else ()),
        "# Train with `attittud train` and this file. To change a setting for one run, add key=value to the command.",
        *data,
        *_settings_lines(kind, first, parts),
    ]
    return "\n".join(lines) + "\n"


def look(config: SourceConfig, table: TableConfig | None = None) -> Look:
    """Read what a source holds. Columns that an auxiliary source does not have are left out of its
    configuration.
    """
    primary = isinstance(config, PrimaryConfig)
    source = open_source(config.path)
    split = "train" if "train" in source.splits else None
    columns = source.columns(split)
    if not primary:
        missing: dict[str, Any] = {
            name: None for name in ("input", "label") if getattr(config, name) not in columns
        }
        config = replace(config, **missing)
    try:
        listing = open_listing(config, source, split, table)
        part = chosen(listing, config, labelled=primary or listing.labels is not None)
        if not len(part.rows) and not primary:
            part = chosen(listing, config, labelled=False)  # an empty label column
        if listing.kind == "text":
            check_texts([str(raw) for raw in part.raws()], listing.where)
    except InputError as error:  # there is no configuration yet, so options replace its settings
        raise type(error)(
            str(error).replace("with input:", "with --input").replace("with label:", "with --label")
        ) from None
    classes = part.classes
    if isinstance(source, ImageFolder):
        nested = _nested(source.root / (split or ""), classes)
    else:
        nested = {}
    if len(classes) == 1 and classes[0] in nested:
        lower = class_root(Path(config.path)) or Path(config.path, classes[0])
        raise InputError(
            f"{config.path}: has only one class, {classes[0]!r}, whose folder contains other folders "
            f"({', '.join(nested[classes[0]][:3])}); did you mean {lower}?"
        )
    size = Pixels.common([look_at(part)], None).size if listing.kind == "image" else None
    groups = [name for name in columns if name in GROUPS][:1]
    return Look(
        config,
        listing,
        part.rows,
        _counts(part.labels, classes),
        source.splits,
        size,
        groups,
        nested,
    )


def _counts(labels: Labels | None, classes: list[str]) -> dict[str, int]:
    if labels is None:
        return {}
    counts = labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=len(classes))
    return dict(zip(classes, counts.tolist(), strict=True))


def _nested(root: Path, classes: Sequence[str]) -> dict[str, list[str]]:
    """Return the subfolders of class folders. All images in them count as examples of the class."""
    inner = {
        name: sorted(
            entry.name
            for entry in (root / name).iterdir()
            if entry.is_dir() and entry.name[:1] != "."
        )
        for name in classes
    }
    return {name: names for name, names in inner.items() if names}


def _data_lines(first: Look, others: dict[str, Look]) -> list[str]:
    same = any(look.config.path == first.config.path for look in others.values())
    split = "null  # the source has its own split"
    judges = "0.2  # these examples choose the model; strategy portfolio joins them with train, and holds out folds of both"
    lines = [
        "data:",
        "  primary:",
        *(f"    {line}" for line in _source_lines(first.config)),
        f"    validation: {split if any(name in first.splits for name in VALIDATION) else judges}",
        f"    test: {split if 'test' in first.splits else '0.2  # used once, for the final score'}",
        f"    train: {'0.2  # the rest of this source is auxiliary data' if same else 'null  # all that is left'}",
        *(
            f"    group: {group}  # rows with the same value stay together, so that no {group} is in training and in test"
            for group in first.groups
        ),
        "  auxiliary:"
        if others
        else "  auxiliary: {}  # none given, so the strategy must be primary_only, or a portfolio that tries it alone",
    ]
    for name, look in others.items():
        lines += [f"    {name}:", *(f"      {line}" for line in _source_lines(look.config))]
        if not look.classes:
            lines.append(
                "      objective: masked_lm  # there are no labels, so the model predicts masked words"
            )
        elif look.shares(first):
            lines.append(
                "      share_head: true  # it has the primary classes; a portfolio also tries a separate output layer for it"
            )
    return lines


def _misspelt(first: Look, others: dict[str, Look]) -> Iterator[str]:
    """Yield a warning for each primary feature that another source seems to have under a misspelt
    name.
    """
    names = first.listing.tables[0].column_names
    for look in others.values():
        columns = look.listing.tables[0].column_names
        for name in (name for name in names if name not in columns):
            if near := get_close_matches(
                name, [other for other in columns if other not in names], n=1, cutoff=0.8
            ):
                yield (
                    f"{WARNING}{_visible(name)} is not used, because {_visible(look.config.path)} has no such column. It has "
                    f"{_visible(near[0])}; if both mean the same, give them the same name."
                )


def _refused(config: DataConfig) -> Iterator[str]:
    """Yield a warning if only a portfolio refuses the data: it holds out every group, not only
    those of validation and test.
    """
    try:
        read_parts(config, 0, pooled=True)
    except InputError as error:
        yield f"{REFUSED}{_visible(str(error), 500)}"


def _table_lines(first: Look, others: dict[str, Look], config: TableConfig) -> list[str]:
    """Return lines that say which columns are features, with a reason for each that is not."""
    if config.columns is not None:
        return [
            "  kind: table",
            "  table:",
            f"    columns: {json.dumps(config.columns, ensure_ascii=False)}  # the features",
        ]
    left_out = _left_out(first, others, config)
    columns = first.listing.tables[0].column_names
    if {*columns} <= left_out.keys():
        raise _no_feature(first.config.path, [left_out[name] for name in columns], left_out)
    return [
        "  kind: table",
        "  table:",
        "    categorical: []  # columns whose numbers are only names, such as postcodes",
        "    exclude:" if left_out else "    exclude: []  # columns that are not features",
        *(
            f"      - {json.dumps(name, ensure_ascii=False)}  # {_visible(reason, 100)}"
            for name, reason in left_out.items()
        ),
    ]


def _left_out(first: Look, others: dict[str, Look], config: TableConfig) -> dict[str, str]:
    """Return the columns that are not features, each with the reason."""
    tables = [look.listing.tables[0] for look in (first, *others.values())]
    left_out = {}
    for name in first.groups:
        if name in tables[0].column_names:
            left_out[name] = "says to whom an example belongs"
    for table in tables:
        for name in table.column_names:
            if not all(name in other.column_names for other in tables):
                left_out.setdefault(name, NOT_SHARED)
    rows = tables[0].take(first.rows)
    guess = cells_are_text(tables[0])
    for name in rows.column_names:
        reason = _no_column(name, rows[name], first.config.path, config, guess=guess)
        if reason is not None:
            left_out.setdefault(name, reason)
    return left_out


def _no_column(
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


def _no_feature(path: str, reasons: list[str], left_out: dict[str, str]) -> InputError:
    """The error for data of which no column is a feature. `reasons`: those of the primary columns;
    `left_out`: those of all columns.
    """
    if NOT_SHARED in reasons:
        cure = "give sources that have columns in common"
    else:
        cure = "give columns whose values differ from row to row"
    first = [f"{_visible(name)}: {reason}" for name, reason in list(left_out.items())[:5]]
    return InputError(f"{path}: no column can be a feature ({'; '.join(first)}); {cure}")


def _source_lines(source: SourceConfig) -> list[str]:
    """Lines with the path and the columns of a source, in quotes, so that no path can be taken for
    something else.
    """
    named = {"path": source.path, "input": source.input, "label": source.label}
    return [
        f"{name}: {json.dumps(text, ensure_ascii=False)}"
        for name, text in named.items()
        if text is not None
    ]


def _settings_lines(kind: str, first: Look, parts: Parts) -> list[str]:
    left = len(parts.primary["train"].rows)
    batch = min(32, left)
    largest = max([len(part.rows) for part in parts.auxiliary.values()], default=left)
    if parts.auxiliary:
        over = "the largest auxiliary source"
    else:
        over = "the training examples, 64 at a time"
    guided = max(200, min(5000, 20 * largest // 64))
    finetune = max(100, min(2000, int(50 * left / batch)))
    what = "auxiliary" if parts.auxiliary else "training"
    model, lr, reason = _model(kind, first.size or 0, largest, what)
    if lr == "1e-4":
        rate = "the paper uses 1e-4 for its residual network"
    else:
        rate = "usual for Adam on small networks"
    chosen = "portfolio  # tries several strategies, keeps the best, and measures what the auxiliary data are worth"
    macro = "  metric: macro_f1  # chooses the model; rare classes count as much as common ones"
    metric = [macro] if kind == "text" and not parts.primary["train"].listing.multi_label else []
    networks = "# model and training are about networks: with strategy portfolio only if portfolio.learners names network"
    return [
        *([networks] if parts.auxiliary else []),
        "model:",
        f"  name: {model}  # {reason}",
        *(_table_model(left, largest if parts.auxiliary else 0) if kind == "table" else ()),
        "training:",
        "  mode: two_phase  # guided: primary and auxiliary data together; then finetune: primary data alone",
        *metric,
        "  guided:",
        f"    steps: {guided}  # about 20 passes over {over}, but at least 200 and at most 5000",
        *(
            ["    batch_size: 64  # examples of each auxiliary source in a step"]
            if parts.auxiliary
            else []
        ),
        f"    primary_batch: {batch}  # primary examples in a step, out of {left} for training",
        f"    lr: {lr}  # {rate}",
        "  finetune:",
        f"    steps: {finetune}  # about 50 passes over the primary training examples, but at least 100 and at most 2000",
        f"    primary_batch: {batch}  # as above",
        "    lr: 1e-4  # small: a large rate would destroy what the guided phase learned",
        "    patience: 10  # stop after 10 evaluations without improvement; strategy portfolio ignores this",
        "strategy:",
        f"  name: {chosen if parts.auxiliary else 'primary_only  # there are no auxiliary data'}",
        "  rank: 5  # directions in which strategies such as auto compare gradients; few, because there are few examples"
        if left < 200
        else "  rank: 10  # directions in which strategies such as auto compare gradients; the usual value",
        *{"text": _TEXT, "table": _TABLE}.get(kind, _IMAGE),
        "seed: 0  # any number; `attittud compare` uses several seeds, because a single one proves nothing",
        "output: runs  # run folders are created in it",
    ]


def _model(kind: str, size: int, largest: int, what: str) -> tuple[str, str, str]:
    """Return a model's name, a learning rate and the reason for the model."""
    if kind == "text":
        return (
            "text-cnn",
            "1e-3",
            "needs no download; hf:FOLDER of a pretrained network will do better",
        )
    if kind == "table":
        return "table-mlp", "1e-3", "residual blocks with LayerNorm; mlp is a plain network"
    if size < 16:
        return "mlp", "1e-3", f"images of {size} x {size} pixels need no convolutions"
    if size >= 96:
        return "resnet-18", "1e-4", f"for images of {size} x {size} pixels"
    if largest >= 5000:
        return (
            "wideresnet-22-4",
            "1e-4",
            "the paper's network; small-cnn is many times faster without a GPU",
        )
    return "small-cnn", "1e-3", f"{largest} {what} examples are too few for a deep network"


def _table_model(training: int, auxiliary: int) -> list[str]:
    count = training + auxiliary
    if count < 2_000:
        width = 64
    elif count < 20_000:
        width = 128
    else:
        width = 256
    if auxiliary:
        examples = f"{count} training and auxiliary examples"
    else:
        examples = f"{count} training examples"
    return [
        f"  width: {width}  # units of a layer, for {examples}",
        "  dropout: 0.1  # keeps the network from memorising a small table",
    ]


def _named(paths: Sequence[str]) -> dict[str, str]:
    """Return the paths, each under a name that can be part of a metric's name."""
    names: dict[str, str] = {}
    for path in paths:
        stem = re.sub(r"\W+", "_", Path(path.removeprefix("hf:")).stem).strip("_") or "source"
        name = f"_{stem}" if stem[0].isdigit() or stem == "primary" else stem
        while name in names:
            name += "_"
        names[name] = path
    return names


def _visible(text: str, most: int = 40) -> str:
    """Make a text safe for a comment, which ends with its line."""
    return short(re.sub(r"[^\x20-\x7e\xa1-\ufffd]", "?", text), most)
