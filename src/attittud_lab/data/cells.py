"""Cells of pyarrow columns as plain values: numbers, texts or lists of numbers, the same for every
file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from attittud_lab.data.source import Rows, check_memory
from attittud_lab.data.spelling import NUMBER
from attittud_lab.errors import InputError, listed, one_line, short

CELLS_ARE_TEXT = {b"cells": b"text"}
"""Metadata of a table whose file does not distinguish numbers from text."""
EXCLUDE = "leave the column out with data.table.exclude"
_MISSING = ("", "?", "na", "n/a", "nan", "none", "null")
Numbers = npt.NDArray[np.float64]


def cells_are_text(table: pa.Table) -> bool:
    """Return whether the file of a table does not distinguish numbers from text."""
    return b"cells" in (table.schema.metadata or {})


def other_separator(names: Sequence[str]) -> str:
    """Return a hint for a message about missing columns, if a single name looks like a heading with
    another separator.
    """
    marks = {";": "semicolons", "\t": "tabs", "|": "bars"}
    for mark, word in marks.items():
        if len(names) == 1 and mark in names[0]:
            return f" (its cells seem to be separated by {word}; write commas, or tabs in a .tsv)"
    return ""


def array(values: Sequence[Any]) -> Any:
    """Return cells as a column of pyarrow; cells of several types become text, as in a csv file."""
    try:
        return pa.array(values, from_pandas=True)  # NaN stands for a gap among texts too
    except (pa.ArrowException, OverflowError, ValueError):
        return pa.array(map(_cell, values), pa.string())


def _cell(value: Any) -> str | None:
    """Return a cell as text; None if it is missing."""
    if value is None or value != value:  # NaN differs from itself
        return None
    return str(value)


def take_rows(tables: Sequence[pa.Table], rows: Rows, where: str) -> pa.Table:
    """Return some rows of several tables as one table; tables with different columns are refused.

    `rows` are sorted, and counted through all tables. `where` names the tables in messages.
    """
    parts = []
    start = 0
    for table in tables:
        end = start + table.num_rows
        of_table = rows[(start <= rows) & (rows < end)]
        parts.append(table.take(pa.array(of_table - start)))
        start = end
    if any(set(part.column_names) != set(parts[0].column_names) for part in parts):
        sides = " and ".join(listed(part.column_names) for part in parts)
        problem = f"{where}: its splits have different columns ({sides})"
        raise InputError(f"{problem}; leave some out with data.table.exclude")
    problem = f"{where}: its splits have columns of different types"
    return concatenate(parts, problem, "write them alike, or name them in data.table.categorical")


def concatenate(tables: Sequence[pa.Table], problem: str, advice: str) -> pa.Table:
    """Return tables as one; types of numbers may differ, but not numbers and text.

    `problem` and `advice` are the error message, without pyarrow's reason.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{problem} ({one_line(error, 200)}); {advice}") from None


def plain(values: Any) -> Any:
    """Return a column without dictionary encoding (as pandas writes it) and without views, whose
    rows cannot be taken.
    """
    kind = _plain_type(values.type)
    if kind == values.type:
        return values
    return values.cast(kind)


def _plain_type(kind: Any) -> Any:
    """Return the type that `plain` casts a type to; fields of a struct are cast one by one."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_plain_type(part.type)) for part in kind])
    if kind == pa.string_view():
        return pa.large_string()
    if kind == pa.binary_view():
        return pa.large_binary()
    return kind


def is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_list(kind: Any) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_number(kind: Any) -> bool:
    """Return whether cells are numbers; a column without any cell counts as one."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
    )


def numbers(values: Any, *, guess: bool) -> Numbers | None:
    """Return a column of n numbers, NaN for missing ones; None for other columns. `guess`: read
    texts as numbers too.
    """
    if is_text(values.type) and guess:
        cells, number, missing = _parsed(values)
        if not compute.all(compute.or_(number, missing), min_count=0).as_py():
            return None
        values = compute.if_else(number, cells, pa.scalar(None, cells.type))
    elif not is_number(values.type):
        return None
    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _parsed(values: Any) -> tuple[Any, Any, Any]:
    """Return texts without blanks around them, whether each is a number, and whether each is
    missing.
    """
    cells = compute.fill_null(compute.utf8_trim_whitespace(values), "")
    missing = compute.is_in(compute.utf8_lower(cells), pa.array(_MISSING, cells.type))
    return cells, compute.match_substring_regex(cells, NUMBER), missing


def _first_text(values: Any) -> str:
    """Return the beginning of the first cell that is neither a number nor missing, in quotes."""
    cells, number, missing = _parsed(values)
    odd = cells.filter(compute.invert(compute.or_(number, missing))).to_pylist()
    return repr(short(next(iter(odd), "")))


def check_mixed(values: Any, culprit: str) -> None:
    """Refuse a column of texts if at least half of the cells that are not missing are numbers: the
    others are more likely mistakes than categories.
    """
    _, number, missing = _parsed(values)
    number_count = compute.sum(number).as_py()
    filled_count = len(values) - compute.sum(missing).as_py()
    if 2 * number_count >= filled_count:
        problem = f"{culprit} has numbers, but also text such as {_first_text(values)}"
        categorical = "name the column in data.table.categorical if its numbers are only names"
        raise InputError(f"{problem}; correct it, {categorical}, or {EXCLUDE}")


def only_numbers(values: Any, culprit: str) -> Numbers:
    """Return the n numbers of a column that had numbers in training, NaN for missing ones; refuses
    text and infinite numbers.
    """
    column = numbers(values, guess=True)
    if column is not None:
        return finite(column, culprit)
    content = str(values.type)[:60]
    if is_text(values.type):
        content = _first_text(values)
    reason = f"{culprit} holds {content} here, but numbers in the primary training examples"
    raise InputError(f"{reason}; correct it, or name the column in data.table.categorical")


def texts(values: Any, culprit: str) -> list[str]:
    """Return a column as texts, empty for missing cells; numbers are written as in csv files."""
    kind = values.type
    if pa.types.is_boolean(kind):
        values = compute.if_else(values, "True", "False")
    elif pa.types.is_floating(kind):
        filled = compute.if_else(compute.is_nan(values), pa.scalar(None, kind), values)
        values = filled.cast(pa.string())
    elif is_number(kind):
        values = values.cast(pa.string())
    elif not is_text(kind):
        advice = "write it as a number, a text or a list of numbers"
        raise InputError(f"{culprit} holds {str(kind)[:60]}; {advice}, or {EXCLUDE}")
    return list(compute.fill_null(compute.utf8_trim_whitespace(values), "").to_pylist())


def lists(values: Any, length: int | None, culprit: str) -> Numbers:
    """Return lists of numbers as n x length; NaN for a missing list or number.

    Without a `length`, all lists must have the same.
    """
    if pa.types.is_null(values.type):  # all of them are missing
        values = values.cast(pa.list_(pa.float64()))
    kind = str(values.type)[:60]
    if not is_list(values.type):
        reason = "lists of numbers in the primary training examples"
        raise InputError(f"{culprit} holds {kind} here, but {reason}")
    present = compute.drop_null(values)
    lengths = set(compute.list_value_length(present).unique().to_pylist())
    expected = f"all must have {length} numbers"
    if not length:
        expected = "give every list the same length, at least 1"
        length = max(lengths, default=0)
    has_other_lengths = bool(lengths - {length})
    if not length or has_other_lengths:
        numbers_of = listed(sorted(lengths), 5) or "no"
        raise InputError(f"{culprit} has lists of {numbers_of} numbers; {expected}")
    memory = f"{culprit} with {len(values):,} lists of {length:,} numbers"
    check_memory(32 * len(values) * length, memory)  # 8 bytes for each number, in up to 4 copies
    flat = numbers(compute.list_flatten(present), guess=False)
    if flat is None:
        raise InputError(f"{culprit} holds {kind}; give lists of numbers only, or {EXCLUDE}")
    out = np.full((len(values), length), np.nan)
    out[values.is_valid().to_numpy()] = finite(flat, culprit).reshape(-1, length)
    return out


def finite(values: Numbers, culprit: str) -> Numbers:
    """Return the numbers, none of which may be infinite."""
    if np.isinf(values).any():
        advice = "correct it, or leave the cell empty, which counts as missing"
        raise InputError(f"{culprit} has an infinite number, or one beyond 1.8e308; {advice}")
    return values
