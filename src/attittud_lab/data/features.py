"""Turn the columns of a table into features: numbers are standardised, texts become one feature for
each value.

`Features.fit` uses the primary training examples alone (in a portfolio all labelled examples, since
all of them train), so that no test or auxiliary row changes what is trained. `Features.encode`
needs no labels, and nothing but what `plain` writes into data.json: new rows are read exactly as
the training rows were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute
from pydantic import TypeAdapter

from attittud_lab.config.schema import TableConfig
from attittud_lab.data.source import Rows, check_memory, warn_once
from attittud_lab.data.spelling import NUMBER, folded
from attittud_lab.errors import InputError, listed, one_line, short

FARTHEST = 10.0
"""Standard deviations from the mean at which a number is cut: one odd cell must not outweigh all
others.
"""
MOST_LEVELS = 100
"""How many texts of a column get a feature of their own: the most frequent ones. The others share
one feature.
"""
FEWEST = 10
"""The fewest training examples for which a text column without equal cells counts as an id."""
CELLS_ARE_TEXT = {b"cells": b"text"}
"""Metadata of a table whose file does not distinguish numbers from text."""
CONSTANT = "the same value in all training examples"
_EXCLUDE = "leave the column out with data.table.exclude"
_MISSING = ("", "?", "na", "n/a", "nan", "none", "null")
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """A column, and how its cells become features."""

    name: str
    kind: Literal["number", "list", "category"]
    mean: list[float] = field(default_factory=list)
    """Means of the training examples: one for a number, one for each position of a list."""
    scale: list[float] = field(default_factory=list)
    """Standard deviations; 0 where all training examples have the same number, which carries no
    information.
    """
    indicator: bool = False
    """Whether a further feature marks missing numbers; the mean replaces them."""
    levels: list[str] = field(default_factory=list)
    """Texts with a feature of their own; one more feature covers all others."""

    @property
    def width(self) -> int:
        """How many features the column has."""
        if self.kind == "category":
            return len(self.levels) + 1
        return len(self.mean) + self.indicator

    @classmethod
    def fit(
        cls, name: str, values: Any, config: TableConfig, where: str, *, guess: bool
    ) -> Self | str:
        """Return the column, or the reason why it is no feature. `guess`: the file does not mark
        which cells are numbers.
        """
        culprit = f"{where}: column {name!r}"
        if name in config.categorical:
            return cls._category(name, texts(values, culprit), culprit)
        if is_list(values.type):
            return cls._numbers(name, "list", _lists(values, None, culprit), culprit)
        read = numbers(values, guess=guess)
        if read is not None:
            return cls._numbers(name, "number", _finite(read, culprit)[:, None], culprit)
        cells = texts(values, culprit)
        if guess:
            _check_mixed(values, culprit)
        if all(text[:1] + text[-1:] == "[]" for text in cells if text):
            problem = f"lists that are written as text, such as {short(cells[0], 40)!r}"
            advice = (
                "write a list into a parquet or jsonl file, or each number into a column of its own"
            )
            raise InputError(f"{culprit} holds {problem}; {advice}")
        named = config.columns is not None and name in config.columns
        if len(cells) >= FEWEST and len(set(cells)) == len(cells) and not named:
            return f"a different text in each of the {len(cells)} training examples, as an id has"
        return cls._category(name, cells, culprit)

    @classmethod
    def _numbers(
        cls, name: str, kind: Literal["number", "list"], values: Numbers, culprit: str
    ) -> Self | str:
        gaps = np.isnan(values)
        if gaps.all():
            raise InputError(
                f"{culprit} is empty in all {len(values)} training examples; fill it, or {_EXCLUDE}"
            )
        mean, scale = _statistics(values)
        indicator = bool(gaps.any())
        if not indicator and not scale.any():
            return CONSTANT
        return cls(name, kind, mean.tolist(), scale.tolist(), indicator)

    @classmethod
    def _category(cls, name: str, cells: Sequence[str], culprit: str) -> Self | str:
        if not any(cells):
            raise InputError(
                f"{culprit} is empty in all {len(cells)} training examples; fill it, or {_EXCLUDE}"
            )
        counts = counts_by_spelling(cells)
        if len(counts) == 1:
            return CONSTANT
        frequent = sorted(counts, key=lambda text: (-counts[text], text))[:MOST_LEVELS]
        if len(counts) > MOST_LEVELS:
            problem = f"{culprit} has {len(counts)} different texts; only the {MOST_LEVELS} most frequent ones"
            warn_once(f"{problem} are distinguished")
        return cls(name, "category", levels=sorted(frequent))

    @property
    def has_gaps(self) -> bool:
        """Whether cells were missing in training, so that the model knows what a missing cell
        means.
        """
        if self.kind == "category":
            return "" in self.levels
        return self.indicator

    def encode(self, values: Any, where: str) -> npt.NDArray[np.float32]:
        """Return the features of some rows, n x `width`.

        A number x becomes (x - mean) / scale, cut at `FARTHEST`; a missing one becomes 0.
        """
        culprit = f"{where}: column {self.name!r}"
        if self.kind == "category":
            return self._encode_texts(texts(values, culprit))
        if self.kind == "list":
            rows = _lists(values, len(self.mean), culprit)
        else:
            read = numbers(values, guess=True)
            if read is None:
                raise _not_numbers(values, culprit)
            rows = _finite(read, culprit)[:, None]
        mean = np.array(self.mean)
        scale = np.array(self.scale)
        with np.errstate(all="ignore"):  # numbers near the largest may overflow, and are cut
            standard = np.where(scale > 0, (rows - mean) / scale, 0)
        parts = [np.clip(np.nan_to_num(standard, nan=0), -FARTHEST, FARTHEST)]
        if self.indicator:
            parts.append(np.isnan(rows).any(1, keepdims=True))
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def _encode_texts(self, cells: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return a 1 for each text at its position in `levels`, or behind them; n x `width`."""
        numbered = {folded(text): number for number, text in enumerate(self.levels)}
        others = len(self.levels)
        chosen = np.array([numbered.get(folded(text), others) for text in cells], dtype=np.int64)
        filled = np.array([bool(text) for text in cells], dtype=bool)
        new = (chosen == others) & filled
        # In a full column they may be texts of training that are too rare for a feature.
        usual = filled.sum() / 2
        if others >= MOST_LEVELS:
            usual = filled.sum() - 1
        if new.any() and new.sum() > usual:
            examples = listed(filter(None, self.levels), 3)
            warn_once(
                f"column {self.name!r}: most texts have no feature of their own, unlike {examples}; "
                "check that they are spelt as in training"
            )
        return np.eye(self.width, dtype=np.float32)[chosen]


@dataclass(frozen=True)
class Features:
    """All columns that are features, in the order of the primary source."""

    columns: list[Column]
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns that are not features, with the reason."""

    @classmethod
    def fit(cls, table: pa.Table, config: TableConfig, where: str) -> Self:
        """Learn the columns from the primary training examples."""
        columns = list[Column]()
        left_out = dict[str, str]()
        guess = cells_are_text(table)
        for name in table.column_names:
            column = Column.fit(name, table[name], config, where, guess=guess)
            if isinstance(column, str):
                left_out[name] = column
                continue
            columns.append(column)
            if is_numbered(table[name], guess=guess):
                rises = (
                    f"{where}: column {name!r} rises or falls from row to row, like a row number"
                )
                warn_once(f"{rises}; if it is one, {_EXCLUDE}")
        for reason in dict.fromkeys(left_out.values()):
            names = [repr(name) for name, other in left_out.items() if other == reason]
            columns_are = f"columns {listed(names)} are"
            them = "them"
            if len(names) == 1:
                columns_are = f"column {listed(names)} is"
                them = "it"
            advice = f"name {them} in data.table.exclude to confirm"
            if reason != CONSTANT:
                advice += f", or in data.table.categorical to keep {them}"
            warn_once(f"{where}: {columns_are} left out: {reason}; {advice}")
        if not columns:
            raise InputError(
                f"{where}: no column is left as a feature; its columns are {listed(table.column_names)}"
            )
        return cls(columns, left_out)

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def check(self, count: int) -> None:
        """Refuse rows whose features take too much memory, before any is encoded."""
        # Each feature takes four bytes; meanwhile the features of one column are in double
        # precision.
        widest = max(column.width for column in self.columns)
        culprit = f"{count:,} rows with {self.width:,} features"
        size = count * (4 * self.width + 24 * widest)
        check_memory(size, culprit, "leave columns out, or give fewer rows")

    def encode(self, table: pa.Table, where: str) -> npt.NDArray[np.float32]:
        """Return the features of rows, n x `width`. Columns that are not features are ignored."""
        for column in self.columns:
            if table.column_names.count(column.name) != 1:
                raise self._lacking(column, table.column_names, where)
        out = np.empty((table.num_rows, self.width), dtype=np.float32)
        start = 0
        for column in self.columns:
            values = plain(table[column.name])
            out[:, start : start + column.width] = column.encode(values, where)
            start += column.width
        return out

    def encode_rows(
        self, rows: Sequence[Mapping[str, Any]], names: Sequence[str]
    ) -> npt.NDArray[np.float32]:
        """Return the features of rows that map columns to cells; error messages name the row.

        A row may lack a cell only if cells of its column were missing in training too. So each row
        is accepted or refused for itself, whatever rows come with it, and a misspelt name is
        noticed.
        """
        for row, name in zip(rows, names, strict=True):
            for column in self.columns:
                if column.name not in row and not column.has_gaps:
                    error = self._lacking(column, list(row), name)
                    raise InputError(
                        f"{error}; write null (in Python None) where a cell is missing"
                    )
        cells = {}
        for column in self.columns:
            cells[column.name] = array([row.get(column.name) for row in rows])
        try:
            return self.encode(pa.table(cells), listed(names, 1))
        except InputError:
            if len(rows) > 1:
                for row, name in zip(rows, names, strict=True):
                    self.encode_rows([row], [name])
            raise

    def _lacking(self, column: Column, present: Sequence[str], where: str) -> InputError:
        problem = f"{where}: needs one column {column.name!r}; its columns are {listed(present) or 'none'}"
        names = listed(column.name for column in self.columns)
        return InputError(f"{problem}, and the training data had {names}{other_separator(present)}")

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Features:
        """Read what `plain` returned, even after a round trip through JSON."""
        return TypeAdapter(Features).validate_python(stored)


def counts_by_spelling(cells: Sequence[str]) -> dict[str, int]:
    """Count each text, under its most frequent spelling: TRUE and true are the same text."""
    counts = Counter(cells)
    totals = dict[str, int]()
    most_frequent = dict[str, str]()  # by the spelling that all formats share
    for text in sorted(counts, key=lambda text: (-counts[text], text)):
        name = most_frequent.setdefault(folded(text), text)
        totals[name] = totals.get(name, 0) + counts[text]
    return totals


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
    if value is None or value != value:  # NaN differs from itself
        return None
    return str(value)


def taken(tables: Sequence[pa.Table], rows: Rows, where: str) -> pa.Table:
    """Take rows from several tables, counted through all of them; `rows` are sorted."""
    parts = []
    start = 0
    for table in tables:
        end = start + table.num_rows
        of_table = rows[(start <= rows) & (rows < end)]
        parts.append(table.take(pa.array(of_table - start)))
        start = end
    if any(set(part.column_names) != set(parts[0].column_names) for part in parts):
        sides = " and ".join(listed(part.column_names) for part in parts)
        raise InputError(
            f"{where}: its splits have different columns ({sides}); leave some out with data.table.exclude"
        )
    if len(parts) < 2:
        return parts[0]
    try:
        return pa.concat_tables(parts, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        reason = f"its splits have columns of different types ({one_line(error, 200)})"
        raise InputError(
            f"{where}: {reason}; write them alike, or name them in data.table.categorical"
        ) from None


def plain(values: Any) -> Any:
    """Return a column without dictionary encoding (as pandas writes it) and without views, whose
    rows cannot be taken.
    """
    kind = _plain_type(values.type)
    if kind == values.type:
        return values
    return values.cast(kind)


def _plain_type(kind: Any) -> Any:
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
    """Return texts without blanks around them, and which of them are numbers or missing."""
    cells = compute.fill_null(compute.utf8_trim_whitespace(values), "")
    missing = compute.is_in(compute.utf8_lower(cells), pa.array(_MISSING, cells.type))
    return cells, compute.match_substring_regex(cells, NUMBER), missing


def _first_text(values: Any) -> str:
    """Return the beginning of the first cell that is neither a number nor missing, in quotes."""
    cells, number, missing = _parsed(values)
    texts_among_numbers = cells.filter(compute.invert(compute.or_(number, missing))).to_pylist()
    first = texts_among_numbers[0] if texts_among_numbers else ""
    return repr(short(first))


def _check_mixed(values: Any, culprit: str) -> None:
    """Refuse text among numbers: it is more likely a mistake than a category."""
    _, number, missing = _parsed(values)
    if 2 * compute.sum(number).as_py() >= len(values) - compute.sum(missing).as_py():
        problem = f"{culprit} has numbers, but also text such as {_first_text(values)}"
        advice = (
            "correct it, name the column in data.table.categorical if its numbers are only names"
        )
        raise InputError(f"{problem}; {advice}, or {_EXCLUDE}")


def _not_numbers(values: Any, culprit: str) -> InputError:
    """Return the error for new rows that have something else where training had numbers."""
    content = str(values.type)[:60]
    if is_text(values.type):
        content = _first_text(values)
    reason = f"{culprit} holds {content} here, but numbers in the primary training examples"
    return InputError(f"{reason}; correct it, or name the column in data.table.categorical")


def is_numbered(values: Any, *, guess: bool) -> bool:
    """Return whether whole numbers rise or fall from each row to the next, like a row number or a
    date.
    """
    read = numbers(values, guess=guess)
    if read is None or len(read) < 2 * FEWEST or not np.isfinite(read).all():
        return False
    steps = np.diff(read)
    return bool((read == np.round(read)).all() and ((steps > 0).all() or (steps < 0).all()))


def texts(values: Any, culprit: str) -> list[str]:
    """Return a column as texts, empty for missing cells; numbers are written as in csv files."""
    kind = values.type
    if pa.types.is_boolean(kind):
        values = compute.if_else(values, "True", "False")
    elif pa.types.is_floating(kind):
        values = compute.if_else(compute.is_nan(values), pa.scalar(None, kind), values).cast(
            pa.string()
        )
    elif is_number(kind):
        values = values.cast(pa.string())
    elif not is_text(kind):
        advice = "write it as a number, a text or a list of numbers"
        raise InputError(f"{culprit} holds {str(kind)[:60]}; {advice}, or {_EXCLUDE}")
    return [text or "" for text in compute.utf8_trim_whitespace(values).to_pylist()]


def _lists(values: Any, length: int | None, culprit: str) -> Numbers:
    """Return lists of numbers, all of one length, as n x length; NaN for a missing list or
    number.
    """
    if pa.types.is_null(values.type):  # all of them are missing
        values = values.cast(pa.list_(pa.float64()))
    if not is_list(values.type):
        raise InputError(
            f"{culprit} holds {str(values.type)[:60]} here, but lists of numbers in the primary training examples"
        )
    there = compute.drop_null(values)
    lengths = {*compute.list_value_length(there).unique().to_pylist()}
    if length is None and len(lengths) == 1:
        length = next(iter(lengths))
    if not length or lengths - {length}:
        if length:
            expected = f"all must have {length} numbers"
        else:
            expected = "give every list the same length, at least 1"
        raise InputError(
            f"{culprit} has lists of {listed(sorted(lengths), 5) or 'no'} numbers; {expected}"
        )
    check_memory(
        32 * len(values) * length, f"{culprit} with {len(values):,} lists of {length:,} numbers"
    )
    flat = numbers(compute.list_flatten(there), guess=False)
    if flat is None:
        raise InputError(
            f"{culprit} holds {str(values.type)[:60]}; give lists of numbers only, or {_EXCLUDE}"
        )
    out = np.full((len(values), length), np.nan)
    out[values.is_valid().to_numpy()] = _finite(flat, culprit).reshape(-1, length)
    return out


def _finite(values: Numbers, culprit: str) -> Numbers:
    """Return the numbers, none of which may be infinite."""
    if np.isinf(values).any():
        advice = "correct it, or leave the cell empty, which counts as missing"
        raise InputError(f"{culprit} has an infinite number, or one beyond 1.8e308; {advice}")
    return values


def _statistics(values: Numbers) -> tuple[Numbers, Numbers]:
    """Return the mean and the standard deviation of each column of n x k numbers; both are 0 for an
    empty column.
    """
    values = np.where(np.isnan(values).all(0), 0, values)
    largest = np.nanmax(np.abs(values), axis=0)
    largest = np.where(largest > 0, largest, 1)
    scaled = values / largest  # the square of a large number would overflow
    constant = np.nanmin(values, axis=0) == np.nanmax(values, axis=0)
    mean = np.nanmean(scaled, axis=0) * largest
    deviation = np.where(constant, 0, np.nanstd(scaled, axis=0) * largest)
    return mean, deviation
