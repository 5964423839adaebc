"""Read the rows of csv, tsv, jsonl and parquet files, in the same way for training and for
prediction.

Training reads whole files with `read_file`. Prediction reads them in batches with `batches` and
`objects`, so that its inputs may be larger than memory. Cells of csv and tsv are texts and are
never guessed: a class may be called NA, 01 or no.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet

from attittud_lab.data.cells import CELLS_ARE_TEXT, concatenate, other_separator
from attittud_lab.data.source import check_memory, first_of
from attittud_lab.errors import InputError, one_line

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")
INPUTS = ("image", "img", "text", "sentence", "content", "review")
"""Columns of images or texts, in the order in which they are looked for."""
LABELS = ("label", "labels", "fine_label", "class", "target")
_LONGEST = 1 << 26  # characters of a cell; the csv module's own limit is short for a text
_AT_ONCE = 4096  # rows of a batch, when a whole file is read
_DEEPEST = 100  # nested lists and objects of a line; pyarrow crashes at some thousands
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MARKS = {  # the longer marks come first, because they begin with the shorter ones
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_file(path: Path) -> pa.Table:
    """Return the table in a file."""
    _check_size(path)
    parts = list(batches(path, _AT_ONCE))
    table = concatenate(parts, f"{path}: a column holds cells of several types", "write one")
    return table.replace_schema_metadata(parts[0].schema.metadata)


def batches(path: Path, size: int) -> Iterator[pa.Table]:
    """Yield the rows of a file in tables of at most `size` rows, at least one table."""
    suffix = path.suffix.lower()
    with blamed(str(path)):
        if suffix == ".parquet":
            yield from _parquet(path, size)
            return
        with open_text(path) as text:
            if suffix == ".jsonl":
                yield from _jsonl(text, path, size)
            elif suffix == ".tsv":
                yield from _csv(text, path, size, "\t")
            else:
                yield from _csv(text, path, size, ",")


def open_text(path: Path) -> TextIO:
    """Open a file in UTF-8, or in UTF-16 or UTF-32 if it begins with their byte-order mark, as the
    "Unicode text" of spreadsheets does.
    """
    with path.open("rb") as file:
        start = file.read(4)
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return path.open(encoding=encoding, newline="")
    if b"\0" in start:
        raise UnicodeError("UTF-16 or UTF-32 without a mark")
    return path.open(encoding="utf-8-sig", newline="")


def objects(text: Iterable[str], where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line of JSON that is not blank, and the object in it.

    Refused are lines that are no object of JSON, half characters, and very deep nesting.
    """
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if _ESCAPED_SURROGATE.search(line):
                json.dumps(row, ensure_ascii=False).encode()  # refuses half a character
            if line.count("[") + line.count("{") > _DEEPEST:
                _check_depth(row, _DEEPEST)
        except (RecursionError, ValueError) as error:
            wrong = f"{where}: line {number} is not JSON ({one_line(error, 120)})"
            raise InputError(f"{wrong}; write one object with the columns per line") from None
        if not isinstance(row, dict):
            advice = 'write lines such as {"text": "..."}'
            raise InputError(f"{where}: line {number} is not an object; {advice}")
        yield number, row


@contextmanager
def blamed(where: str) -> Iterator[None]:
    """Blame errors of a reader inside the block on the file."""
    try:
        yield
    except UnicodeError:
        raise InputError(f"{where}: is not text in UTF-8; save it in this encoding") from None
    except (pa.ArrowException, csv.Error, OSError, ValueError, KeyError) as error:
        problem = f"{where}: cannot be read ({one_line(error, 200)})"
        raise InputError(f"{problem}; check the file") from None


def find_column(
    names: Sequence[str], name: str | None, usual: Sequence[str], where: str
) -> str | None:
    """Return the column `name`, or without a name the first of the usual columns; None if it is not
    there. A column that `names` has twice is refused.
    """
    if name is not None:
        usual = (name,)
    column = first_of(usual, names)
    if column is not None and list(names).count(column) > 1:
        problem = f"{where}: has the column {column!r} more than once"
        raise InputError(f"{problem}; rename or remove all but one of them")
    return column


def content(cell: Any) -> Any:
    """Return the bytes of an image in the hub's layout, and any other cell as it is.

    The path of such an image is only a name, so a table cannot make us open a file.
    """
    if isinstance(cell, Mapping):
        return cell.get("bytes")
    return cell


def _check_size(path: Path) -> None:
    """Refuse a file whose table would not fit into memory: for texts, three times their size."""
    with blamed(str(path)):
        size = 3 * path.stat().st_size
        if path.suffix.lower() == ".parquet":
            with pa.parquet.ParquetFile(path) as file:
                groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
                size = sum(group.total_byte_size for group in groups)
        check_memory(size, f"{path}: the file")


def _parquet(path: Path, size: int) -> Iterator[pa.Table]:
    """Yield what `batches` yields; the first table is empty and has the schema, which a file without
    rows would not show otherwise.
    """
    with pa.parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        yield schema.empty_table()
        for batch in file.iter_batches(size):
            table = pa.Table.from_batches([batch])
            table.validate(full=True)
            yield table.replace_schema_metadata(schema.metadata)


def _csv(text: Iterable[str], path: Path, size: int, delimiter: str) -> Iterator[pa.Table]:
    """Yield what `batches` yields; all cells are texts."""
    rows = _csv_rows(text, path, delimiter)
    names = next(rows)
    for some in _in_lists(rows, size):
        cells: list[Sequence[Any]] = [()] * len(names)
        if some:  # a file may have a heading alone
            cells = list(zip(*some, strict=True))
        yield _table(names, cells, path, pa.string()).replace_schema_metadata(CELLS_ARE_TEXT)


def _csv_rows(text: Iterable[str], path: Path, delimiter: str) -> Iterator[list[str]]:
    """Yield the heading, and then all rows. Empty lines are left out, and a row with more or fewer
    cells than the heading is refused.
    """
    csv.field_size_limit(_LONGEST)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    names: list[str] = []
    try:
        for number, row in enumerate(filter(None, reader)):
            names = names or row
            if len(row) != len(names):
                wrong = f"{path}: row {number} has {len(row)} cells, the heading has {len(names)}"
                advice = "repair the row, or quote cells that hold separators"
                raise InputError(f"{wrong}{other_separator(names)}; {advice}")
            yield row
    except csv.Error as error:
        wrong = f"{path}: line {reader.line_num} or a quoted cell before it is wrong"
        advice = 'write quotes inside a quoted cell twice ("")'
        raise InputError(f"{wrong} ({one_line(error, 120)}); {advice}") from None
    if not names:
        raise InputError(f"{path}: there are no examples in it; check the file")


def _jsonl(text: Iterable[str], path: Path, size: int) -> Iterator[pa.Table]:
    """Yield what `batches` yields; a column is missing (null) in objects without its key."""
    rows = (row for _, row in objects(text, str(path)))
    for some in _in_lists(rows, size):
        names = list(dict.fromkeys(chain.from_iterable(some)))  # each key of these rows once
        cells = []
        for name in names:
            cells.append([row.get(name) for row in some])
        yield _table(names, cells, path)


def _check_depth(value: Any, allowed: int) -> None:
    """Refuse a value with more than `allowed` lists and objects inside of each other."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        if not allowed:
            raise ValueError(f"more than {_DEEPEST} nested lists and objects")
        for inner in value:
            _check_depth(inner, allowed - 1)


def _in_lists(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Yield the rows in lists of at most `size`, at least one list."""
    some = list(islice(rows, size))
    yield some
    while some := list(islice(rows, size)):
        yield some


def _table(
    names: Sequence[str],
    cells: Sequence[Sequence[Any]],
    path: Path,
    kind: pa.DataType | None = None,
) -> pa.Table:
    """Return columns with these names and cells as a table.

    `kind` is the type of all columns; without it, the type of each follows from its cells.
    """
    columns = []
    for name, column in zip(names, cells, strict=True):
        try:
            columns.append(pa.array(column, kind))
        except (pa.ArrowException, OverflowError, ValueError) as error:
            several = "cells of several types, or numbers beyond 64 bits"
            problem = f"{path}: column {name!r} holds {several} ({one_line(error, 120)})"
            raise InputError(f"{problem}; write one type") from None
    return pa.Table.from_arrays(columns, names=list(names))
