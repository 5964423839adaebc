"""Tables: parquet as the public dataset hub lays it out, and texts in csv, tsv or jsonl."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from attittud_lab.data.folder import inside
from attittud_lab.data.listing import Columns, Kind, Listing, Raw, Rows
from attittud_lab.errors import InputError, one_line

INPUTS = ("image", "img", "text", "sentence", "content", "review")
LABELS = ("label", "labels", "fine_label", "class", "target")
_SHARD = re.compile(r"(?P<split>.+?)(-\d{5}-of-\d{5})?\.(parquet|csv|tsv|jsonl)")


def shards(folder: Path) -> dict[str | None, list[Path]]:
    """Files by split: `train-00000-of-00003.parquet` and `train.csv` belong to the split train."""
    found: dict[str | None, list[Path]] = {}
    # The hub keeps its parquet in a folder called data.
    for place in (folder, folder / "data"):
        if not place.is_dir():
            continue
        for path in sorted(place.iterdir()):
            match = _SHARD.fullmatch(path.name)
            if match and path.is_file():
                found.setdefault(match["split"], []).append(inside(folder, path))
        if found:
            return found
    return {}


@dataclass
class Tables:
    """One or several files, by split; None for a file that was named itself."""

    path: Path
    files: dict[str | None, list[Path]]
    _read: dict[str | None, pa.Table] = field(default_factory=dict, repr=False)

    @property
    def splits(self) -> list[str]:
        return [name for name in self.files if name is not None]

    def listing(self, split: str | None, columns: Columns) -> Listing:
        table = self.table(split)
        where = str(self.path if split is None else f"{self.path} ({split})")
        return table_listing(table, where, columns)

    def columns(self, split: str | None) -> list[str]:
        return list(self.table(split).column_names)

    def table(self, split: str | None) -> pa.Table:
        """All files of a split as one table; without a split, all files."""
        if split not in self._read:
            names = [split] if split in self.files else list(self.files)
            self._read[split] = _concatenated([path for name in names for path in self.files[name]])
        return self._read[split]


def table_listing(table: pa.Table, where: str, columns: Columns) -> Listing:
    """A listing of any table with an image or text column."""
    table = filtered(table, where, columns.where)
    if table.num_rows == 0:
        raise InputError(f"{where}: there are no examples in it")
    column = _choose(table, where, columns.input, INPUTS, "input")
    if column is None:
        raise InputError(
            f"{where}: no column looks like an image or a text; name it by input:. Columns: {_names(table)}"
        )
    values = _plain(table[column])
    kind: Kind = (
        "image"
        if pa.types.is_struct(values.type) or pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
        else "text"
    )
    if kind == "text" and not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise InputError(
            f"{where}: column {column!r} holds {str(values.type)[:60]}, neither text nor images; name another one by input:"
        )

    def fetch(rows: Rows) -> Sequence[Raw]:
        return [_raw(value, where, column) for value in values.take(pa.array(rows)).to_pylist()]

    label = _choose(table, where, columns.label, LABELS, "label")
    labels, classes = (None, []) if label is None else _labels(table, label, where)
    group = _choose(table, where, columns.group, (), "group")
    groups = None if group is None else [str(value) for value in _plain(table[group]).to_pylist()]
    return Listing(where, kind, table.num_rows, fetch, labels, classes, groups=groups)


def filtered(table: pa.Table, where: str, wanted: Mapping[str, str]) -> pa.Table:
    """The rows that have these values, compared as texts."""
    for column, value in wanted.items():
        _choose(table, where, column, (), "where")
        kept = pa.array([str(found) == value for found in table[column].to_pylist()])
        if not any(kept.to_pylist()):
            raise InputError(
                f"{where}: no row has {value!r} in column {column!r} (where:); its values are {_values(table[column])}"
            )
        table = table.filter(kept)
    return table


def _values(column: Any) -> str:
    found = [str(value) for value in column.unique().to_pylist()]
    return ", ".join(found[:10]) + (", ..." if len(found) > 10 else "")


def _choose(table: pa.Table, where: str, wanted: str | None, usual: Sequence[str], what: str) -> str | None:
    if wanted is not None and wanted not in table.column_names:
        raise InputError(f"{where}: there is no column {wanted!r} ({what}:); its columns are {_names(table)}")
    return wanted or next((name for name in usual if name in table.column_names), None)


def _names(table: pa.Table) -> str:
    return ", ".join(table.column_names)


def _raw(value: Any, where: str, column: str) -> Raw:
    if isinstance(value, dict):
        value = value.get("bytes")  # its path is only a name; nothing is opened by what a table says
    if not isinstance(value, (bytes, str)):
        raise InputError(f"{where}: column {column!r} has a row without content; remove such rows")
    return value


def _labels(table: pa.Table, column: str, where: str) -> tuple[npt.NDArray[np.int64], list[str]]:
    """Class numbers with names, or 0/1 for lists of labels. Nulls and negative numbers mean: no label."""
    values = _plain(table[column])
    names = _class_names(table, column)
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or pa.types.is_fixed_size_list(values.type):
        return _multi_label(values, names, where, column)
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        numbers = np.array(values.cast(pa.int64()).fill_null(-1).to_pylist(), dtype=np.int64)
        largest = int(numbers.max(initial=-1))
        if names is None:
            if largest >= 100_000:
                raise InputError(
                    f"{where}: column {column!r} has the number {largest}, which is no class; name another column by label:"
                )
            names = [str(number) for number in range(largest + 1)]
        if largest >= len(names):
            raise InputError(
                f"{where}: column {column!r} has the class number {largest}, but only {len(names)} class names are given"
            )
        return np.maximum(numbers, -1), names
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        found = values.to_pylist()
        names = sorted({name for name in found if name})  # an empty cell is no class
        index = {name: number for number, name in enumerate(names)}
        return np.array([index.get(name, -1) for name in found], dtype=np.int64), names
    raise InputError(
        f"{where}: column {column!r} holds {str(values.type)[:60]}; a label is a whole number, a text or a list of 0 and 1"
    )


def _plain(values: Any) -> Any:
    """Columns in which pandas has numbered the different values."""
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _multi_label(
    values: Any, names: list[str] | None, where: str, column: str
) -> tuple[npt.NDArray[np.int64], list[str]]:
    rows = values.to_pylist()
    if any(not row or len(row) != len(rows[0]) for row in rows):
        raise InputError(
            f"{where}: the lists in column {column!r} are empty or have different lengths; give 0 or 1 for each label"
        )
    if not all(label in (0, 1) for row in rows for label in row):
        raise InputError(f"{where}: the lists in column {column!r} must hold 0 and 1 only")
    matrix = np.array(rows, dtype=np.int64)
    return matrix, names if names and len(names) == matrix.shape[1] else [
        str(number) for number in range(matrix.shape[1])
    ]


def _class_names(table: pa.Table, column: str) -> list[str] | None:
    """From the schema's metadata: the hub's own form, or a plain list under `class_names`."""
    metadata = table.schema.metadata or {}
    try:
        if b"huggingface" in metadata:
            feature = json.loads(metadata[b"huggingface"])["info"]["features"][column]
            names = feature.get("names") or feature.get("feature", {}).get("names")
        else:
            names = json.loads(metadata[b"class_names"])
            names = names.get(column) if isinstance(names, dict) else names
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(names, list) or not names or len({str(name) for name in names}) != len(names):
        return None
    return [str(name) for name in names]


def _concatenated(files: Sequence[Path]) -> pa.Table:
    tables = [read_file(path) for path in files]
    try:
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{files[0].parent}: the files have different columns ({one_line(error, 200)})") from None


def read_file(path: Path) -> pa.Table:
    try:
        table = _parsed(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read as {path.suffix[1:]} ({one_line(error, 200)}); check the file"
        ) from None
    bytes_are_text = path.suffix in (".csv", ".tsv")  # texts in another encoding come as bytes from there
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)  # what pyarrow does not do by itself for jsonl and parquet
            broken = bytes_are_text and pa.types.is_binary(column.type)
        except pa.ArrowInvalid:
            broken = True
        if broken:
            raise InputError(f"{path}: column {name!r} is not UTF-8 text; save the file in that encoding")
    return table


def _parsed(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pa.parquet.read_table(path)
    if path.suffix == ".jsonl":
        return pa.json.read_json(path)
    delimiter = "\t" if path.suffix == ".tsv" else ","
    options = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    # No word means nothing here: a class may be called NA or null.
    convert = pa.csv.ConvertOptions(null_values=[], strings_can_be_null=False)
    return pa.csv.read_csv(path, parse_options=options, convert_options=convert)
