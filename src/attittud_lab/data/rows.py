"""Read the rows of csv, tsv, jsonl and parquet files, in the same way for training and for
prediction.

Training reads whole files with `read_file`. Prediction reads them in batches with `batches` and
`objects`, so that its inputs may be larger than memory. Cells of csv and tsv are texts and are
never guessed: a class may be called NA, 01 or no.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from attittud_lab.data.features import CELLS_ARE_TEXT, other_separator
from attittud_lab.data.source import check_memory
from attittud_lab.errors import InputError, one_line

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")
INPUTS = ("image", "img", "text", "sentence", "content", "review")
"""Columns of images or texts, in the order in which they are looked for."""
LABELS = ("label", "labels", "fine_label", "class", "target")
DEEPEST = 100
"""The most nested lists and objects in a line of jsonl; pyarrow crashes at some thousands."""
LONGEST = 1 << 26
"""Characters of a line or a cell. A quote that is never closed would otherwise take all memory."""
_AT_ONCE = 4096  # rows of a batch, when a whole file is read
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_WIDE = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def read_file(path: Path) -> pa.Table:
    """Return the table in a file; every column holds valid values."""
    _check_size(path)
    parts = list(batches(path, _AT_ONCE))
    first = parts[0].schema
    if all(part.schema.equals(first) for part in parts):
        return pa.concat_tables(parts)
    try:
        table = pa.concat_tables(parts, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(
            f"{path}: a column holds cells of several types ({one_line(error, 200)}); write one"
        ) from None
    return table.replace_schema_metadata(first.metadata)


def batches(path: Path, size: int) -> Iterator[pa.Table]:
    """Yield the rows of a file in tables of at most `size` rows, at least one table."""
    suffix = path.suffix.lower()
    with blamed(path, suffix[1:]):
        if suffix == ".parquet":
            yield from _parquet(path, size)
            return
        with path.open("rb") as file:
            text = lines(file, str(path))
            if suffix == ".jsonl":
                yield from _jsonl(text, path, size)
            else:
                yield from _csv(text, path, size, "\t" if suffix == ".tsv" else ",")


def count_rows(path: Path) -> int | None:
    """Return how many rows a file has; None if only reading it shows that."""
    if path.suffix.lower() != ".parquet":
        return None
    with blamed(path, "parquet"), pa.parquet.ParquetFile(path) as file:
        return int(file.metadata.num_rows)


def objects(text: Iterable[str], where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each line of JSON that is not blank, and the object in it."""
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            deep = line.count("[") + line.count("{") > DEEPEST and _depth(row) > DEEPEST
        except RecursionError:
            deep = True
        except ValueError as error:
            wrong = f"{where}: line {number} is not JSON ({one_line(error, 120)})"
            raise InputError(f"{wrong}; write one object with the columns per line") from None
        if deep:
            wrong = f"{where}: line {number} has more than {DEEPEST} nested lists and objects"
            raise InputError(f"{wrong}; keep only what is needed")
        if not isinstance(row, dict):
            raise InputError(
                f'{where}: line {number} is not an object; write lines such as {{"text": "..."}}'
            )
        if _ESCAPED_SURROGATE.search(line) and _SURROGATE.search(
            json.dumps(row, ensure_ascii=False)
        ):
            raise _not_text(where, number)
        yield number, row


def lines(stream: io.BufferedReader, where: str) -> Iterator[str]:
    """Yield the lines of a text in UTF-8, or in UTF-16 or UTF-32 with a byte-order mark."""
    start = stream.peek(4)[:4]
    # The longer marks come first, because they begin with the shorter ones.
    encoding = next((name for mark, name in _WIDE.items() if start.startswith(mark)), "utf-8-sig")
    # A byte that is not UTF-8 becomes a surrogate, so that its line can be named.
    text = io.TextIOWrapper(stream, encoding, errors="surrogateescape", newline="")
    number = 0
    try:
        while line := text.readline(LONGEST):
            number += 1
            if len(line) == LONGEST:
                raise InputError(
                    f"{where}: has a line of more than {LONGEST:,} characters; is it the right file?"
                )
            if not line.isascii() and _SURROGATE.search(line):
                raise _not_text(where, number)
            yield line
    except UnicodeDecodeError:
        raise _not_text(where, number + 1) from None
    finally:
        with suppress(ValueError):  # the file was closed meanwhile
            text.detach()


def _not_text(where: str, number: int) -> InputError:
    return InputError(f"{where}: line {number} is not UTF-8 text; save the file in that encoding")


@contextmanager
def blamed(path: Path, kind: str) -> Iterator[None]:
    """Blame errors of a reader inside the block on the file."""
    try:
        yield
    except (pa.ArrowException, csv.Error, OSError, ValueError, KeyError) as error:
        problem = f"{path}: cannot be read as {kind} ({one_line(error, 200)})"
        raise InputError(f"{problem}; check the file") from None


def find_column(
    names: Sequence[str], name: str | None, usual: Sequence[str], where: str
) -> str | None:
    """Return the column `name`, or without a name the first of the usual columns; None if there is
    none of them.
    """
    candidates = usual if name is None else (name,)
    column = next((candidate for candidate in candidates if candidate in names), None)
    if column is not None and list(names).count(column) > 1:
        raise InputError(
            f"{where}: has the column {column!r} more than once; rename or remove all but one of them"
        )
    return column


def content(cell: Any) -> Any:
    """Return the bytes of an image in the hub's layout: its path is only a name, so a table cannot
    make us open a file.
    """
    return cell.get("bytes") if isinstance(cell, Mapping) else cell


def _check_size(path: Path) -> None:
    with blamed(path, path.suffix[1:]):
        if path.suffix.lower() != ".parquet":
            check_memory(3 * path.stat().st_size, f"{path}: the file")
            return
        with pa.parquet.ParquetFile(path) as file:
            about = file.metadata
            groups = [about.row_group(number) for number in range(about.num_row_groups)]
            # A repeated value takes no room in the file, but eight bytes or more in memory.
            size = (
                sum(group.total_byte_size for group in groups)
                + 8 * about.num_rows * about.num_columns
            )
            check_memory(size, f"{path}: its {about.num_rows:,} rows")


def _parquet(path: Path, size: int) -> Iterator[pa.Table]:
    with pa.parquet.ParquetFile(path) as file:
        schema = file.schema_arrow
        if not file.metadata.num_rows:
            yield schema.empty_table()
        for batch in file.iter_batches(size):
            table = pa.Table.from_batches([batch]).replace_schema_metadata(schema.metadata)
            for name, column in zip(table.column_names, table.columns, strict=True):
                try:
                    column.validate(full=True)
                except pa.ArrowInvalid:
                    wrong = f"{path}: column {name!r} is not UTF-8 text"
                    raise InputError(f"{wrong}; save the file in that encoding") from None
            yield table


def _csv(text: Iterator[str], path: Path, size: int, delimiter: str) -> Iterator[pa.Table]:
    rows = _csv_rows(text, path, delimiter)
    names = next(rows)
    for some in _in_lists(rows, size):
        cells: list[Sequence[Any]] = list(zip(*some, strict=True)) if some else [()] * len(names)
        yield _table(names, cells, path, pa.string()).replace_schema_metadata(CELLS_ARE_TEXT)


def _csv_rows(text: Iterator[str], path: Path, delimiter: str) -> Iterator[list[str]]:
    """Yield the heading and all rows, which have as many cells; empty lines are left out."""
    csv.field_size_limit(LONGEST)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    names: list[str] = []
    number = 0
    try:
        for row in reader:
            if names and row:
                number += 1
            if row and names and len(row) != len(names):
                wrong = f"{path}: row {number} has {len(row)} cells, the heading has {len(names)}"
                cure = "repair the row, or quote cells that hold separators"
                raise InputError(f"{wrong}{other_separator(names)}; {cure}")
            if row:
                names = names or row
                yield row
    except csv.Error as error:
        reason = f"a quoted cell is not closed, or goes on behind its closing quote ({one_line(error, 120)})"
        wrong = f"{path}: cannot be read as csv: in or before line {reader.line_num}, {reason}"
        raise InputError(f'{wrong}; write quotes inside a quoted cell twice ("")') from None
    if not names:
        raise InputError(f"{path}: there are no examples in it; check the file")


def _jsonl(text: Iterator[str], path: Path, size: int) -> Iterator[pa.Table]:
    rows = (row for _, row in objects(text, str(path)))
    for some in _in_lists(rows, size):
        names: dict[str, None] = {}
        for row in some:
            names |= dict.fromkeys(row)
        cells = [[row.get(name) for row in some] for name in names]
        yield _table(list(names), cells, path, None)


def _in_lists(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Yield the rows in lists of at most `size`, at least one list."""
    some = list(islice(rows, size))
    yield some
    while some := list(islice(rows, size)):
        yield some


def _table(
    names: Sequence[str], cells: Sequence[Sequence[Any]], path: Path, kind: pa.DataType | None
) -> pa.Table:
    columns = []
    for name, column in zip(names, cells, strict=True):
        try:
            columns.append(pa.array(column, kind))
        except (pa.ArrowException, OverflowError, ValueError) as error:
            wrong = (
                f"{path}: column {name!r} holds cells of several types, or numbers beyond 64 bits"
            )
            raise InputError(f"{wrong} ({one_line(error, 120)}); write one type") from None
    return pa.Table.from_arrays(columns, names=list(names))


def _depth(value: Any) -> int:
    """Return how many lists and objects are nested in each other."""
    depth = 0
    layer = [value]
    while layer:
        depth += 1
        inner: list[Any] = []
        for outer in layer:
            members = outer.values() if isinstance(outer, dict) else outer
            inner += [member for member in members if isinstance(member, (dict, list))]
        layer = inner
    return depth
