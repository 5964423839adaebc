"""Rows of a table of features, whose cells keep the types of their file.

The number 0.1 in single precision becomes another text in double precision. If such numbers are
categories, rows of a parquet file or of a data frame must not turn into Python's numbers before
they become features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from attittud_lab.data.features import Features
from attittud_lab.errors import InputError


@dataclass(frozen=True)
class TableRow:
    """One row of a table of pyarrow."""

    table: pa.Table
    position: int


Row = TableRow | Mapping[str, Any]


def rows_of(table: pa.Table) -> list[Row]:
    return [TableRow(table, position) for position in range(table.num_rows)]


def encoded(
    features: Features, rows: Sequence[Row], names: Sequence[str], warned: set[str]
) -> npt.NDArray[np.float32]:
    """Return the features of rows, n x width; an error message names the row. `warned`: as for
    `Features.encode`.
    """
    parts = []
    for _, pairs in groupby(enumerate(rows), _stretch):
        numbers, some = zip(*pairs, strict=True)
        try:
            parts.append(_together(features, some, names[numbers[0]], warned))
        except InputError as error:
            culprits = (
                _refusal(features, row, names[number])
                for number, row in zip(numbers, some, strict=True)
            )
            raise next(filter(None, culprits), error) from None
    return np.concatenate(parts) if parts else np.empty((0, features.width), dtype=np.float32)


def _refusal(features: Features, row: Row, name: str) -> InputError | None:
    """Return why a row cannot be read; None if it can be. New texts of a single row are not worth a
    warning.
    """
    try:
        _together(features, [row], name, {column.name for column in features.columns})
    except InputError as error:
        return error
    return None


def _stretch(pair: tuple[int, Row]) -> tuple[int, int] | None:
    """A key that neighbouring rows of one table share, and all mappings."""
    number, row = pair
    return (id(row.table), row.position - number) if isinstance(row, TableRow) else None


def _together(
    features: Features, rows: Sequence[Any], where: str, warned: set[str]
) -> npt.NDArray[np.float32]:
    """Return the features of mappings, or of neighbouring rows of one table."""
    if isinstance(rows[0], TableRow):
        return features.encode(rows[0].table.slice(rows[0].position, len(rows)), where, warned)
    return features.encode_rows(rows, where, warned)
