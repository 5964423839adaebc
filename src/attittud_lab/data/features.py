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
from pydantic import TypeAdapter

from attittud_lab.config.schema import TableConfig
from attittud_lab.data.cells import (
    EXCLUDE,
    Numbers,
    array,
    cells_are_text,
    check_mixed,
    finite,
    is_list,
    lists,
    numbers,
    only_numbers,
    other_separator,
    plain,
    texts,
)
from attittud_lab.data.source import check_memory, warn_once
from attittud_lab.data.spelling import folded
from attittud_lab.errors import InputError, listed, short

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
CONSTANT = "the same value in all training examples"


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
        """Return the column with what the training cells `values` decide; or the reason why it is no
        feature. With `guess`, texts may be numbers, because the file does not mark which cells are.

        Refused are columns that are empty, numbers with text among them, and lists written as text.
        """
        culprit = f"{where}: column {name!r}"
        if name in config.categorical:
            return cls._category(name, texts(values, culprit), culprit)
        if is_list(values.type):
            return cls._numbers(name, "list", lists(values, None, culprit), culprit)
        column = numbers(values, guess=guess)
        if column is not None:
            return cls._numbers(name, "number", finite(column, culprit)[:, None], culprit)
        cells = texts(values, culprit)
        if guess:
            check_mixed(values, culprit)
        in_brackets = [text[:1] == "[" and text[-1:] == "]" for text in cells if text]
        if all(in_brackets):
            problem = f"lists that are written as text, such as {short(cells[0], 40)!r}"
            files = "write a list into a parquet or jsonl file"
            advice = f"{files}, or each number into a column of its own"
            raise InputError(f"{culprit} holds {problem}; {advice}")
        named = config.columns is not None and name in config.columns
        all_differ = len(cells) >= FEWEST and len(set(cells)) == len(cells)
        if all_differ and not named:
            return f"a different text in each of the {len(cells)} training examples, as an id has"
        return cls._category(name, cells, culprit)

    @classmethod
    def _numbers(
        cls, name: str, kind: Literal["number", "list"], values: Numbers, culprit: str
    ) -> Self | str:
        """Return a column of `values`, n x 1 or n x length; or the reason why it is no feature."""
        gaps = np.isnan(values)
        if gaps.all():
            raise _empty(culprit, len(values))
        mean, scale = _statistics(values)
        indicator = bool(gaps.any())
        if not indicator and not scale.any():
            return CONSTANT
        return cls(name, kind, mean.tolist(), scale.tolist(), indicator)

    @classmethod
    def _category(cls, name: str, cells: Sequence[str], culprit: str) -> Self | str:
        """Return a column of texts; or the reason why it is no feature."""
        if not any(cells):
            raise _empty(culprit, len(cells))
        counts = counts_by_spelling(cells)
        if len(counts) == 1:
            return CONSTANT
        # Texts that are equally frequent are taken in alphabetical order.
        frequent = sorted(counts, key=lambda text: (-counts[text], text))[:MOST_LEVELS]
        if len(counts) > MOST_LEVELS:
            problem = f"{culprit} has {len(counts)} different texts"
            warn_once(f"{problem}; only the {MOST_LEVELS} most frequent ones are distinguished")
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
            rows = lists(values, len(self.mean), culprit)
        else:
            rows = only_numbers(values, culprit)[:, None]
        mean = np.array(self.mean)
        scale = np.array(self.scale)
        with np.errstate(all="ignore"):  # numbers near the largest may overflow, and are cut
            standard = np.where(scale > 0, (rows - mean) / scale, 0)
        parts = [np.clip(np.nan_to_num(standard, nan=0), -FARTHEST, FARTHEST)]
        if self.indicator:
            parts.append(np.isnan(rows).any(1, keepdims=True))
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def _encode_texts(self, cells: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return a row for each text, n x `width`: 1 at the position of the text in `levels`, or at
        the last position if it is not there; else 0. Warns if most texts are not in `levels`.
        """
        others = len(self.levels)
        position_of = dict(zip(map(folded, self.levels), range(others), strict=True))
        chosen = np.array([position_of.get(folded(text), others) for text in cells], dtype=np.int64)
        filled = np.array(list(map(bool, cells)), dtype=bool)
        new = (chosen == others) & filled
        most_new = filled.sum() / 2
        if others >= MOST_LEVELS:
            # New texts may be texts of training that were too rare for a feature, so only a column
            # with nothing but new texts is odd.
            most_new = filled.sum() - 1
        if new.any() and new.sum() > most_new:
            examples = listed(filter(None, self.levels), 3)
            problem = f"column {self.name!r}: most texts have no feature of their own"
            warn_once(f"{problem}, unlike {examples}; check that they are spelt as in training")
        return np.eye(self.width, dtype=np.float32)[chosen]


@dataclass(frozen=True)
class Features:
    """All columns that are features, in the order of the primary source."""

    columns: list[Column]
    left_out: dict[str, str] = field(default_factory=dict)
    """Columns that are not features, with the reason."""

    @classmethod
    def fit(cls, table: pa.Table, config: TableConfig, where: str) -> Self:
        """Learn the columns from the primary training examples. Warns of columns that are left out,
        and of columns that look like row numbers; refuses a table without any feature.
        """
        columns = list[Column]()
        left_out = dict[str, str]()
        names_of = dict[str, list[str]]()  # by the reason for which they are left out
        guess = cells_are_text(table)
        for name in table.column_names:
            column = Column.fit(name, table[name], config, where, guess=guess)
            if isinstance(column, str):
                left_out[name] = column
                names_of.setdefault(column, []).append(repr(name))
                continue
            columns.append(column)
            if is_numbered(table[name], guess=guess):
                rises = "rises or falls from row to row, like a row number"
                warn_once(f"{where}: column {name!r} {rises}; if it is one, {EXCLUDE}")
        for reason, names in names_of.items():
            columns_are = f"columns {listed(names)} are"
            them = "them"
            if len(names) == 1:
                columns_are = f"column {names[0]} is"
                them = "it"
            advice = f"name {them} in data.table.exclude to confirm"
            if reason != CONSTANT:
                advice += f", or in data.table.categorical to keep {them}"
            warn_once(f"{where}: {columns_are} left out: {reason}; {advice}")
        if not columns:
            problem = f"{where}: no column is left as a feature"
            raise InputError(f"{problem}; its columns are {listed(table.column_names)}")
        return cls(columns, left_out)

    @property
    def width(self) -> int:
        """How many features all columns have together."""
        return sum(column.width for column in self.columns)

    def check(self, count: int) -> None:
        """Refuse rows whose features take too much memory, before any is encoded."""
        # Each feature takes four bytes; meanwhile those of one column are in double precision.
        widest = max(column.width for column in self.columns)
        size = count * (4 * self.width + 24 * widest)
        culprit = f"{count:,} rows with {self.width:,} features"
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
                    advice = "write null (in Python None) where a cell is missing"
                    raise InputError(f"{error}; {advice}")
        cells = {}
        for column in self.columns:
            cells[column.name] = array([row.get(column.name) for row in rows])
        try:
            return self.encode(pa.table(cells), listed(names, 1))
        except InputError:
            if len(rows) > 1:  # encode row by row, so that the row at fault raises with its name
                for row, name in zip(rows, names, strict=True):
                    self.encode_rows([row], [name])
            raise

    def _lacking(self, column: Column, present: Sequence[str], where: str) -> InputError:
        """Return the error for rows with the columns `present`, which do not have `column` exactly
        once.
        """
        problem = f"{where}: needs one column {column.name!r}"
        trained = listed(column.name for column in self.columns)
        columns = (
            f"its columns are {listed(present) or 'none'}, and the training data had {trained}"
        )
        return InputError(f"{problem}; {columns}{other_separator(present)}")

    def plain(self) -> dict[str, Any]:
        """Return what data.json keeps, as mappings, lists and scalars."""
        return asdict(self)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Features:
        """Read what `plain` returned, even after a round trip through JSON."""
        return TypeAdapter(Features).validate_python(stored)


def _empty(culprit: str, count: int) -> InputError:
    """Return the error for a column that says nothing."""
    problem = f"{culprit} is empty in all {count} training examples"
    return InputError(f"{problem}; fill it, or {EXCLUDE}")


def counts_by_spelling(cells: Sequence[str]) -> dict[str, int]:
    """Count each text, under its most frequent spelling: TRUE and true are the same text."""
    counts = Counter(cells)
    totals = dict[str, int]()
    most_frequent = dict[str, str]()  # by the spelling that all formats share
    frequent_first = sorted(counts, key=lambda text: (-counts[text], text))
    for text in frequent_first:
        spelling = most_frequent.setdefault(folded(text), text)
        totals[spelling] = totals.get(spelling, 0) + counts[text]
    return totals


def is_numbered(values: Any, *, guess: bool) -> bool:
    """Return whether whole numbers rise or fall from each row to the next, like a row number or a
    date.
    """
    column = numbers(values, guess=guess)
    if column is None or len(column) < 2 * FEWEST or not np.isfinite(column).all():
        return False
    steps = np.diff(column)
    rises_or_falls = (steps > 0).all() or (steps < 0).all()
    all_whole = (column == np.round(column)).all()
    return bool(all_whole and rises_or_falls)


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
