"""Tables as a source: parquet in the layout of the public dataset hub, csv, tsv and jsonl.

A table holds images, texts or features. `rows.py` reads the files, and `labels.py` says what a
label is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from attittud_lab.config.options import as_path
from attittud_lab.config.schema import Kind
from attittud_lab.data.cells import (
    cells_are_text,
    concatenate,
    is_list,
    is_text,
    numbers,
    plain,
    texts,
)
from attittud_lab.data.labels import labels_of
from attittud_lab.data.rows import INPUTS, LABELS, SUFFIXES, content, find_column, read_file
from attittud_lab.data.source import Columns, Listing, Raw, Rows, inside, warn_once
from attittud_lab.data.spelling import folded, looks
from attittud_lab.errors import InputColumnError, InputError, listed

_SHARD = re.compile(r"(?P<split>[^.].*?)(-\d{5}-of-(?P<of>\d{5}))?\.(parquet|csv|tsv|jsonl)")


def shards(folder: Path) -> dict[str | None, list[Path]]:
    """Return the files of a folder by split; none if it has no tables.

    `train-00000-of-00003.parquet` and `train.csv` belong to the split train. A warning says if
    there are fewer files than their names announce.
    """
    files: dict[str | None, list[Path]] = {}
    # The hub keeps its parquet in a folder called data.
    for inner in (folder, folder / "data"):
        if not inner.is_dir():
            continue
        announced: dict[str, int] = {}  # how many files a split has, as their names say
        for path in sorted(inner.iterdir()):
            match = _SHARD.fullmatch(path.name)
            if match and path.is_file():
                files.setdefault(match["split"], []).append(inside(folder, path))
                announced[match["split"]] = int(match["of"] or 0)
        for split, count in announced.items():
            if len(files[split]) < count:
                present = f"only {len(files[split])} of the {count} files"
                warn_once(f"{inner}: found {present} of split {split}")
        if files:
            return files
    return {}


@dataclass
class Tables:
    """One or several files by split; the split of a file that the user named is None."""

    path: Path
    files: dict[str | None, list[Path]]
    _read: dict[str | None, pa.Table] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, name: str) -> Self | None:
        """Return the tables in a folder, or one file; None for a folder without tables and for a
        path that does not exist. A file of another type is refused.
        """
        path = as_path(name)
        if path.is_dir():
            files = shards(path)
            if not files:
                return None
            return cls(path, files)
        if not path.exists():
            return None
        if path.suffix.lower() not in SUFFIXES:
            suffix = path.suffix or "file without a suffix"
            raise InputError(f"{name}: cannot read a {suffix}; give one of {', '.join(SUFFIXES)}")
        return cls(path, {None: [path]})

    @property
    def splits(self) -> list[str]:
        return list(filter(None, self.files))

    def columns(self, split: str | None) -> list[str]:
        return list(self.table(split).column_names)

    def listing(self, split: str | None, columns: Columns) -> Listing:
        where = str(self.path)
        if split is not None:
            where += f" ({split})"
        return table_listing(self.table(split), where, columns)

    def table(self, split: str | None) -> pa.Table:
        """Return all files of a split as one table; without a split, all files. A table that was
        read is kept.
        """
        if split not in self._read:
            paths = self.files.get(split)
            if paths is None:
                paths = list(chain.from_iterable(self.files.values()))
            tables = list(map(read_file, paths))
            problem = f"{self.path}: the files have different columns"
            self._read[split] = concatenate(tables, problem, "write them alike")
        return self._read[split]


def table_listing(table: pa.Table, where: str, columns: Columns) -> Listing:
    """Return the listing of the rows of a table that `columns.where` asks for: with an image or text
    column, or with columns of features.
    """
    mask = matching(table, where, columns.where)
    if not mask.all():
        table = table.filter(pa.array(mask))
    row_numbers = np.flatnonzero(mask) + 1  # in the file, counted from 1 as people do
    label = _choose(table, where, columns.label, LABELS, "label")
    group = _choose(table, where, columns.group, (), "group")
    if columns.table is None:
        kind, fetch = _inputs(table, where, columns)
        tables = []
    else:
        features = _features(table, where, columns, {label, group, *columns.where})
        kind = "table"
        fetch = partial(_cells, features, where)
        tables = [features]
    labels = None
    classes: list[str] = []
    if label is not None:
        labels, classes = labels_of(table, label, f"{where}: column {label!r}")
    groups = None
    if group is not None:
        groups = _groups(table[group], row_numbers.tolist(), where, group)
    return Listing(
        where,
        kind,
        table.num_rows,
        fetch,
        labels,
        classes,
        groups=groups,
        tables=tables,
        names=lambda rows: [f"{where}, row {number}" for number in row_numbers[rows]],
        columns=list(table.column_names),
    )


def _groups(values: Any, numbers: Sequence[int], where: str, column: str) -> list[str]:
    """Return the group of each row; a row whose cell is empty is a group of its own."""
    groups: list[str] = []
    empty = 0
    for value, number in zip(plain(values).to_pylist(), numbers, strict=True):
        group = ""
        if value is not None and value == value:  # NaN differs from itself
            # One file may have 7 where another has 7.0, because other cells of the column are empty.
            group = folded(looks(str(value)).strip())
        if not group:
            empty += 1
            group = f"{where}, row {number}"  # unlike any group of this or another file
        groups.append(group)
    if empty:
        problem = f"{where}: {empty} of {len(groups)} rows have no group (column {column!r})"
        warn_once(f"{problem}; each counts as a group of its own")
    return groups


def _inputs(
    table: pa.Table, where: str, columns: Columns
) -> tuple[Kind, Callable[[Rows], Sequence[Raw]]]:
    """Return the kind of a table's input column, text or image, and a function that fetches its
    cells at some rows. A missing text is an empty one.
    """
    column = _choose(table, where, columns.input, INPUTS, "input")
    if column is None:
        problem = f"{where}: no column looks like an image or a text; name it with input:. Columns:"
        advice = "If these are features, set data.kind: table (`attittud init table` does)"
        raise InputColumnError(f"{problem} {listed(table.column_names)}. {advice}")
    values = plain(table[column])
    type_ = values.type

    def cells(rows: Rows) -> list[Any]:
        return list(values.take(pa.array(rows)).to_pylist())

    if is_text(type_):
        return "text", lambda rows: [cell or "" for cell in cells(rows)]
    is_binary = pa.types.is_binary(type_) or pa.types.is_large_binary(type_)
    if not (is_binary or pa.types.is_struct(type_)):  # the hub keeps an image in a struct
        problem = f"{where}: column {column!r} holds {str(type_)[:60]}"
        raise InputError(f"{problem}, neither text nor images; name another column with input:")
    return "image", lambda rows: [_image(cell, where, column) for cell in cells(rows)]


def _image(cell: Any, where: str, column: str) -> Raw:
    """Return the bytes of an encoded image; a row without one is refused."""
    image = content(cell)
    if not isinstance(image, bytes):
        raise InputError(f"{where}: column {column!r} has a row without an image; remove such rows")
    return image


def _features(table: pa.Table, where: str, columns: Columns, others: set[str | None]) -> pa.Table:
    """Return the columns of features, without `others` (label, group and columns of `where`). Equal
    cells get the same type, whatever file they come from.
    """
    config = columns.table
    assert config is not None
    if columns.input is not None:
        advice = "choose the columns of a table with data.table.columns"
        raise InputError(f"{where}: input: {columns.input} is for an image or a text; {advice}")
    for key in ("columns", "categorical"):
        for name in getattr(config, key) or ():
            _choose(table, where, name, (), f"data.table.{key}")  # refuses a name that is not there
    left_out = {*others, *config.exclude}
    allowed = table.column_names
    if config.columns is not None:
        allowed = config.columns
    guess = cells_are_text(table)
    cells = dict[str, Any]()
    for name in table.column_names:
        if name in left_out or name not in allowed:
            continue
        _choose(table, where, name, (), "data.table.columns")  # refuses a second of this name
        cells[name] = plain(table[name])
        if name in config.categorical:
            cells[name] = texts(cells[name], f"{where}: column {name!r}")
        elif guess:
            parsed = numbers(cells[name], guess=True)
            if parsed is not None:
                cells[name] = pa.array(parsed, from_pandas=True)
    if not cells:
        besides = listed(sorted(filter(None, others)))
        problem = f"{where}: has no column of features besides {besides}; check data.table"
        raise InputError(f"{problem}. Its columns are {listed(table.column_names)}")
    return pa.table(cells, metadata=table.schema.metadata)


def _cells(features: pa.Table, where: str, rows: Rows) -> list[Raw]:
    """Return the cells of each row as bytes; equal rows have equal bytes, whatever the order of
    their columns and the format of the file.
    """
    some = features.take(pa.array(rows))
    names = sorted(features.column_names)
    columns = [_bytes(some[name], f"{where}: column {name!r}") for name in names]
    return [b"\0".join(cells) for cells in zip(*columns, strict=True)]


def _bytes(values: Any, culprit: str) -> list[bytes]:
    """Return each cell of a column as bytes, equal for equal cells."""
    column = numbers(values, guess=False)
    if column is not None:
        return [number.tobytes() for number in _alike(column)]
    if is_list(values.type):
        return [repr(cell).encode() for cell in values.to_pylist()]
    return [folded(text).encode() for text in texts(values, culprit)]


def _alike(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the numbers so that equal ones have equal bytes: 0 and -0, and all kinds of NaN.

    A fraction of single precision becomes the shortest number that is written for it: 0.1 is
    0.10000000149011612 in parquet and often in jsonl, but 0.1 in csv files.
    """
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    is_single = (single == values) & (values != np.rint(values))
    shortest = values.copy()
    texts_of_single = pa.array(single[is_single]).cast(pa.string())
    shortest[is_single] = texts_of_single.cast(pa.float64()).to_numpy()
    return np.where(np.isnan(values), np.nan, shortest + 0.0)  # -0 + 0 is 0


def matching(table: pa.Table, where: str, values: Mapping[str, str]) -> npt.NDArray[np.bool_]:
    """Return which rows have all of these `values` (by column), compared as texts.

    A table without rows is refused, and so is a value that no row has.
    """
    if table.num_rows == 0:
        raise InputError(f"{where}: there are no examples in it; check the file")
    mask = np.ones(table.num_rows, dtype=bool)
    for column, value in values.items():
        _choose(table, where, column, (), "where")
        cells = np.array(list(map(str, table[column].to_pylist())), dtype=object)
        spelling = folded(value)
        equal = mask & [folded(cell) == spelling for cell in cells]
        if not equal.any():
            others = listed(dict.fromkeys(cells[mask]), 10)
            problem = f"{where}: no row has {value!r} in column {column!r} (where:)"
            raise InputError(f"{problem}; its values are {others}")
        mask = equal
    return mask


def _choose(
    table: pa.Table, where: str, name: str | None, usual: Sequence[str], setting: str
) -> str | None:
    """Return the column `name`, or without a name the first of the `usual` columns; None if there
    is none of these.

    A `name` that the table lacks is refused, and so is a column that it has twice. `setting` is
    what messages call the place where a user writes the name.
    """
    column = find_column(table.column_names, name, usual, where)
    if column is None and name is not None:
        problem = f"{where}: there is no column {name!r} ({setting}:)"
        raise InputError(f"{problem}; its columns are {listed(table.column_names)}")
    return column
