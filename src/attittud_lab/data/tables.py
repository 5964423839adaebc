"""Tables: parquet in the layout of the public dataset hub, csv, tsv and jsonl, with images, texts or features in them.

pyarrow reads all of them. Cells of csv and tsv are read as text and never guessed: a class may be called NA, 01 or no.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
from pyarrow import compute

from attittud_lab.config.options import as_path
from attittud_lab.config.schema import Kind
from attittud_lab.data.features import CELLS_ARE_TEXT, cells_are_text, is_list, numbers, plain, texts
from attittud_lab.data.source import Columns, Labels, Listing, Raw, Rows, check_memory, inside, warn_once
from attittud_lab.data.spelling import folded, number_in
from attittud_lab.errors import InputColumnError, InputError, listed, one_line

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")
INPUTS = ("image", "img", "text", "sentence", "content", "review")
LABELS = ("label", "labels", "fine_label", "class", "target")
DEEPEST = 100
"""The most nested lists and objects in a line of jsonl; pyarrow crashes at some thousands."""
_SHARD = re.compile(r"(?P<split>[^.].*?)(-\d{5}-of-(?P<of>\d{5}))?\.(parquet|csv|tsv|jsonl)")
_WHOLE = r"^[ \t]*(0|-?[1-9][0-9]{0,17})[ \t]*$"
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)  # a quote that is never closed goes to the end
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"[]{}")


def shards(folder: Path) -> dict[str | None, list[Path]]:
    """Files by split: `train-00000-of-00003.parquet` and `train.csv` belong to the split train."""
    found: dict[str | None, list[Path]] = {}
    # The hub keeps its parquet in a folder called data.
    for inner in (folder, folder / "data"):
        if not inner.is_dir():
            continue
        announced: dict[str, int] = {}
        for path in sorted(inner.iterdir()):
            match = _SHARD.fullmatch(path.name)
            if match and path.is_file():
                found.setdefault(match["split"], []).append(inside(folder, path))
                announced[match["split"]] = int(match["of"] or 0)
        for split, count in announced.items():
            if len(found[split]) < count:
                warn_once(f"{inner}: found only {len(found[split])} of the {count} files of split {split}")
        if found:
            return found
    return {}


@dataclass
class Tables:
    """One or several files by split; the split of a file that the user named is None."""

    path: Path
    files: dict[str | None, list[Path]]
    _read: dict[str | None, pa.Table] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, name: str) -> Self | None:
        path = as_path(name)
        if path.is_dir():
            files = shards(path)
            return cls(path, files) if files else None
        if not path.exists():
            return None
        if not path.is_file():
            what = f"is neither a file nor a folder; give one of {', '.join(SUFFIXES)}, or a folder of images"
        elif path.suffix.lower() not in SUFFIXES:
            what = f"cannot read a {path.suffix or 'file without a suffix'}; give one of {', '.join(SUFFIXES)}"
        else:
            return cls(path, {None: [path]})
        raise InputError(f"{name}: {what}")

    @property
    def splits(self) -> list[str]:
        return [name for name in self.files if name is not None]

    def columns(self, split: str | None) -> list[str]:
        return list(self.table(split).column_names)

    def listing(self, split: str | None, columns: Columns) -> Listing:
        where = str(self.path if split is None else f"{self.path} ({split})")
        return table_listing(self.table(split), where, columns)

    def table(self, split: str | None) -> pa.Table:
        """All files of a split as one table; without a split, all files."""
        if split not in self._read:
            names = [split] if split in self.files else list(self.files)
            tables = [read_file(path) for name in names for path in self.files[name]]
            try:
                self._read[split] = pa.concat_tables(tables, promote_options="permissive") if tables[1:] else tables[0]
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                reason = f"the files have different columns ({one_line(error, 200)})"
                raise InputError(f"{self.files[names[0]][0].parent}: {reason}") from None
        return self._read[split]


def table_listing(table: pa.Table, where: str, columns: Columns) -> Listing:
    """A listing of any table with an image or text column, or with columns of features."""
    kept = matching(table, where, columns.where)
    table = table if kept.all() else table.filter(pa.array(kept))
    counted = np.flatnonzero(kept) + 1
    label = _choose(table, where, columns.label, LABELS, "label")
    group = _choose(table, where, columns.group, (), "group")
    if columns.table is None:
        kind, fetch = _inputs(table, where, columns)
        tables = []
    else:
        features = _features(table, where, columns, {label, group, *columns.where})
        kind, fetch, tables = "table", partial(_cells, features), [features]
    labels, classes = (None, []) if label is None else _labels(table, label, where)
    groups = None if group is None else _groups(table[group], counted.tolist(), where, group)
    listing = Listing(where, kind, table.num_rows, fetch, labels, classes, groups=groups, tables=tables)
    return replace(listing, names=lambda rows: [f"{where}, row {number}" for number in counted[rows]])


def _groups(values: Any, numbers: Sequence[int], where: str, column: str) -> list[str]:
    """Return the group of each row; a row whose cell is empty is a group of its own."""
    found, empty = list[str](), 0
    for value, number in zip(plain(values).to_pylist(), numbers, strict=True):
        text = "" if value is None or value != value else str(value).strip()  # NaN differs from itself
        text = folded(text)  # one file may have 7 where another has 7.0, because other cells of the column are empty
        empty += not text
        found.append(text or f"{where}, row {number}")  # unlike any group of this or another file
    if empty:
        have = "has" if empty == 1 else "have"
        what = f"{where}: {empty} of {len(found)} rows {have} no group (column {column!r})"
        warn_once(f"{what}; each counts as a group of its own, so fill the cells if some of them belong together")
    return found


def _inputs(table: pa.Table, where: str, columns: Columns) -> tuple[Kind, Callable[[Rows], Sequence[Raw]]]:
    """The images or texts of a table."""
    column = _choose(table, where, columns.input, INPUTS, "input")
    if column is None:
        known = listed(table.column_names)
        found = f"{where}: no column looks like an image or a text; name it with input:. Columns: {known}"
        raise InputColumnError(f"{found}. If these are features, set data.kind: table (`attittud init table` does)")
    values = plain(table[column])
    kind: Kind = "image" if pa.types.is_struct(values.type) or _is(values, "binary") else "text"
    if kind == "text" and not _is(values, "string"):
        found = f"{where}: column {column!r} holds {str(values.type)[:60]}"
        raise InputError(f"{found}, neither text nor images; name another column with input:")

    def fetch(rows: Rows) -> Sequence[Raw]:
        return [_raw(value, where, column) for value in values.take(pa.array(rows)).to_pylist()]

    return kind, fetch


def _features(table: pa.Table, where: str, columns: Columns, others: set[str | None]) -> pa.Table:
    """Return the columns of features, without `others`. Equal cells get the same type, whatever file they come from."""
    config = columns.table
    assert config is not None
    if columns.input is not None:
        cure = "choose the columns of a table with data.table.columns"
        raise InputError(f"{where}: input: {columns.input} is for an image or a text; {cure}")
    for key in ("columns", "categorical"):
        for name in getattr(config, key) or ():
            _choose(table, where, name, (), f"data.table.{key}")
    known = [name for name in table.column_names if name not in others and name not in config.exclude]
    names = [name for name in known if config.columns is None or name in config.columns]
    if not names:
        found = f"{where}: has no column of features besides {listed(sorted(filter(None, others)))}"
        raise InputError(f"{found}; check data.table. Its columns are {listed(table.column_names)}")
    guess, made = cells_are_text(table), dict[str, Any]()
    for name in names:
        _choose(table, where, name, (), "data.table.columns")
        values = plain(table[name])
        if name in config.categorical:
            made[name] = pa.chunked_array([pa.array(texts(values, f"{where}: column {name!r}"))])
        else:
            read = numbers(values, guess=True) if guess else None
            made[name] = values if read is None else pa.chunked_array([pa.array(read, from_pandas=True)])
    return pa.table(made, metadata=table.schema.metadata)


def _cells(features: pa.Table, rows: Rows) -> list[Raw]:
    """Return the cells of each row as bytes; equal rows have equal bytes, whatever the order of their columns."""
    some = features.take(pa.array(rows))
    columns = [_bytes(some[name]) for name in sorted(features.column_names)]
    return [b"\0".join(cells) for cells in zip(*columns, strict=True)]


def _bytes(values: Any) -> list[bytes]:
    """Return each cell as bytes, which do not depend on the format of the file."""
    if values.type == pa.float32():
        # In double precision, which csv files are read in, 0.1 is another number.
        values = values.cast(pa.string()).cast(pa.float64())
    read = numbers(values, guess=False)
    if read is not None:
        return [number.tobytes() for number in _alike(read)]
    if pa.types.is_boolean(values.type) or _is(values, "string"):
        return [_text_bytes(text) for text in texts(values, "")]
    flat = numbers(compute.list_flatten(values), guess=False) if is_list(values.type) else None
    if flat is None:
        return [repr(value).encode("utf-8", "surrogatepass") for value in values.to_pylist()]
    lengths = compute.fill_null(compute.list_value_length(values), 0).to_numpy()
    return [part.tobytes() for part in np.split(flat + 0.0, np.cumsum(lengths)[:-1])]


def _alike(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return numbers whose bytes are equal if they are: 0 and -0 are, and all kinds of NaN count as equal."""
    return np.where(np.isnan(values), np.nan, values + 0.0)


def _text_bytes(text: str) -> bytes:
    """Return the bytes of a number if the text is one: whether a column of csv is read as numbers depends on its other cells."""
    number = number_in(text)
    return folded(text).encode("utf-8", "surrogatepass") if number is None else _alike(np.array(number)).tobytes()


def filtered(table: pa.Table, where: str, wanted: Mapping[str, str]) -> pa.Table:
    """Return the rows that have these values, compared as texts; there must be at least one."""
    kept = matching(table, where, wanted)
    return table if kept.all() else table.filter(pa.array(kept))


def matching(table: pa.Table, where: str, wanted: Mapping[str, str]) -> npt.NDArray[np.bool_]:
    """Find the rows that have these values, compared as texts; there must be at least one."""
    if table.num_rows == 0:
        raise InputError(f"{where}: there are no examples in it; check the file")
    rows = np.arange(table.num_rows)
    for column, value in wanted.items():
        _choose(table, where, column, (), "where")
        cells = [str(cell) for cell in table[column].to_pylist()]
        found = [cells[row] for row in rows]
        kept = [cell == value for cell in found]
        if not any(kept):  # `True` also matches `true` in a csv file
            kept = [cell.casefold() == value.casefold() for cell in found]
        if not any(kept):
            values = listed(dict.fromkeys(found), 10)
            raise InputError(f"{where}: no row has {value!r} in column {column!r} (where:); its values are {values}")
        rows = rows[kept]
    return np.isin(np.arange(table.num_rows), rows)


def _choose(table: pa.Table, where: str, wanted: str | None, usual: Sequence[str], what: str) -> str | None:
    if wanted is not None and wanted not in table.column_names:
        known = listed(table.column_names)
        raise InputError(f"{where}: there is no column {wanted!r} ({what}:); its columns are {known}")
    chosen = wanted or next((name for name in usual if name in table.column_names), None)
    if table.column_names.count(chosen) > 1:
        raise InputError(f"{where}: has the column {chosen!r} more than once; rename or remove all but one of them")
    return chosen


def _is(values: Any, kind: str) -> bool:
    return any(getattr(pa.types, f"is_{name}")(values.type) for name in (kind, f"large_{kind}"))


def _raw(value: Any, where: str, column: str) -> Raw:
    if isinstance(value, dict):
        value = value.get("bytes")  # its path is only a name: a table cannot make us open a file
    if not isinstance(value, (bytes, str)):
        raise InputError(f"{where}: column {column!r} has a row without content; remove such rows")
    return value


def _labels(table: pa.Table, column: str, where: str) -> tuple[Labels, list[str]]:
    """Class numbers with names, or 0/1 for lists of labels. Nulls, empty cells and negative numbers mean no label."""
    values, names, culprit = plain(table[column]), class_names(table, column), f"{where}: column {column!r}"
    kind = values.type
    if is_list(kind):
        return _multi_label(values.to_pylist(), names, culprit)
    if cells_are_text(table) and compute.all(compute.match_substring_regex(values, _WHOLE)).as_py():
        values = compute.utf8_trim_whitespace(values).cast(pa.int64())
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    if pa.types.is_floating(kind):
        values = _whole(values)
    if pa.types.is_integer(values.type):
        distinct = sorted(number for number in values.unique().to_pylist() if number is not None and number >= 0)
        if names is not None and distinct and distinct[-1] >= len(names):
            raise InputError(
                f"{culprit} has the class number {distinct[-1]}, but there are only {len(names)} class names"
            )
        index = {number: number if names else position for position, number in enumerate(distinct)}
        classes = names or [str(number) for number in distinct]
    elif _is(values, "string"):
        classes = sorted(name for name in values.unique().to_pylist() if name)
        index = {name: number for number, name in enumerate(classes)}
    else:
        cure = "a label is a whole number, a text or a list of 0 and 1; convert the column to one of them"
        raise InputError(f"{culprit} holds {str(kind)[:60]}; {cure}")
    return np.array([index.get(value, -1) for value in values.to_pylist()], dtype=np.int64), classes


def _whole(values: Any) -> Any:
    """Return a column of floats as whole numbers if all are: pandas makes floats of whole numbers where some are missing."""
    values = values.cast(pa.float64())
    try:
        return compute.if_else(compute.is_nan(values), pa.scalar(None, pa.float64()), values).cast(pa.int64())
    except pa.ArrowInvalid:
        return values


def _multi_label(rows: list[Any], names: list[str] | None, culprit: str) -> tuple[Labels, list[str]]:
    """Rows of 0 and 1, one column for each label, and the names of the labels: their numbers where the file has none."""
    if any(not row or len(row) != len(rows[0]) for row in rows):
        raise InputError(f"{culprit} has lists that are empty or have different lengths; give 0 or 1 for each label")
    if not all(label in (0, 1) for row in rows for label in row):
        raise InputError(f"{culprit} has lists of other values; they must hold 0 and 1 only")
    count = len(rows[0])
    return np.array(rows, dtype=np.int64), names if names and len(names) == count else [str(i) for i in range(count)]


def class_names(table: pa.Table, column: str) -> list[str] | None:
    """Return the class names of one column from the schema's metadata.

    They are in the hub's own form, in a mapping `class_names` by column, under the column's own key (`fine_label_names`), or
    in a list `class_names`. A list applies to the column that is read by default, or to a column that has all its classes.
    """
    metadata, own = table.schema.metadata or {}, f"{column}_names".encode()
    try:
        if b"huggingface" in metadata:
            feature = json.loads(metadata[b"huggingface"])["info"]["features"][column]
            names = feature.get("names") or feature.get("feature", {}).get("names")
        elif own in metadata:
            names = json.loads(metadata[own])
        else:
            names = json.loads(metadata[b"class_names"])
            usual = next((name for name in LABELS if name in table.column_names), column)
            if isinstance(names, dict):
                names = names.get(column)
            elif column != usual and not pa.types.is_nested(table[column].type):
                names = names if len(table[column].unique()) == len(names) else None
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(names, list) or not names or len({str(name) for name in names}) != len(names):
        return None
    return [str(name) for name in names]


def read_file(path: Path) -> pa.Table:
    """The table in a file; every column holds valid values."""
    suffix = path.suffix.lower()
    try:
        table = _parquet(path) if suffix == ".parquet" else _text_table(path, suffix)
        names = table.column_names  # decoded here
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = re.sub(r"in row (\d+)", lambda found: f"in record {int(found[1]) + 1}", one_line(error))
        raise InputError(f"{path}: cannot be read as {suffix[1:]} ({reason[:200]}); check the file") from None
    columns = []
    for name, column in zip(names, table.columns, strict=True):
        try:
            columns.append(column.cast(pa.string()) if suffix in (".csv", ".tsv") else column)
            column.validate(full=True)  # pyarrow itself does not check jsonl and parquet
        except pa.ArrowInvalid:
            raise InputError(f"{path}: column {name!r} is not UTF-8 text; save the file in that encoding") from None
    return pa.Table.from_arrays(columns, names=names, metadata=table.schema.metadata)


def _parquet(path: Path) -> pa.Table:
    with pa.parquet.ParquetFile(path) as file:
        about = file.metadata
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        # A repeated value takes no room in the file, but eight bytes or more in memory.
        size = sum(group.total_byte_size for group in groups) + 8 * about.num_rows * about.num_columns
        check_memory(size, f"{path}: its {about.num_rows:,} rows")
        return file.read()


def _text_table(path: Path, suffix: str) -> pa.Table:
    check_memory(3 * path.stat().st_size, f"{path}: the file")
    content = path.read_bytes()
    # UTF-16 and UTF-32 announce themselves by a byte-order mark; the longer one begins with the shorter one.
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        content = content.decode("utf-32").encode()
    elif content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        content = content.decode("utf-16").encode()
    block = min(len(content) + 1024, 1 << 30)  # a row must not be longer than a block
    if suffix == ".jsonl":
        return _jsonl(content, path, block)
    return _csv(content, path, block, "\t" if suffix == ".tsv" else ",")


def _csv(content: bytes, path: Path, block: int, delimiter: str) -> pa.Table:
    _check_quotes(content, path, delimiter)
    reading = pa.csv.ReadOptions(block_size=block, use_threads=False)  # with threads, messages have no row numbers
    parsing = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    names = _header(content, path, delimiter)
    for _ in range(2):
        # As bytes, so that a column in another encoding can be named.
        convert = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()), null_values=[], strings_can_be_null=False
        )
        table = pa.csv.read_csv(io.BytesIO(content), reading, parsing, convert)
        if not set(table.schema.types) - {pa.binary()}:
            break
        names = table.column_names  # pyarrow reads this header in another way
    return table.replace_schema_metadata(CELLS_ARE_TEXT)


def _header(content: bytes, path: Path, delimiter: str) -> list[str]:
    """Return the column names, without pyarrow's streaming reader: its thread may abort a process that ends in an error."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        return next((row for row in csv.reader(text, delimiter=delimiter) if row), [])
    except csv.Error as error:
        raise InputError(f"{path}: the first line is not a list of column names ({error}); write one") from None


def _check_quotes(content: bytes, path: Path, delimiter: str) -> None:
    """Refuse a quote that is never closed, or closed in the middle of a cell: rows would be merged silently."""
    if b'"' not in content:
        return
    other = re.escape(delimiter.encode())
    cell = rb'(?:"(?:[^"]++|"")*+"|[^"' + other + rb"\r\n][^" + other + rb"\r\n]*+|)"
    rows = re.compile(rb"(?:" + cell + rb"(?:" + other + rb"|\r\n?|\n))*+" + cell)
    match = rows.match(content, 3 if content.startswith(codecs.BOM_UTF8) else 0)
    end = match.end() if match else 0
    if end < len(content):
        line = content.count(b"\n", 0, end) + 1
        found = f"{path}: a quoted cell is not closed, or continues after its closing quote, in or before line {line}"
        raise InputError(f'{found}; write quotes inside a quoted cell twice ("")')


def _jsonl(content: bytes, path: Path, block: int) -> pa.Table:
    depth = 0
    for number, line in enumerate(io.BytesIO(content), 1):
        for mark in _STRING.sub(b"", line).translate(None, _NO_BRACKETS):
            depth += 1 if mark in b"[{" else -1
            if depth > DEEPEST:
                found = f"{path}: line {number} has more than {DEEPEST} nested lists and objects"
                raise InputError(f"{found}; keep only what is needed")
    reading = pa.json.ReadOptions(block_size=block, use_threads=False)
    table = pa.json.read_json(io.BytesIO(content), read_options=reading)
    dates = [column.name for column in table.schema if pa.types.is_timestamp(column.type)]
    if not dates:
        return table
    # Texts that look like dates stay texts.
    schema = pa.schema([(name, pa.string()) for name in dates])
    return pa.json.read_json(io.BytesIO(content), reading, pa.json.ParseOptions(explicit_schema=schema))
