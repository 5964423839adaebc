"""Tables: the columns as they are. `data/features.py` has standardised them on the training rows
already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from attittud_lab.errors import InputError
from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.output.progress import Progress


class ColumnFeatures(FeatureMap):
    """The numbers of a table, unchanged."""

    name = "columns"
    reads = "table"

    def __init__(self, width: int | None = None) -> None:
        self.width = width

    def fit(self, inputs: npt.ArrayLike) -> None:
        self.width = np.asarray(inputs).shape[1]

    def transform(
        self, inputs: npt.ArrayLike, progress: Progress | None = None
    ) -> npt.NDArray[np.float32]:
        """Return the columns, n x width; refuses another number of them."""
        rows = np.asarray(inputs, dtype=np.float32)
        if self.width is None:
            raise ValueError("the map has not been fitted; call fit() first")
        if rows.ndim != 2 or rows.shape[1] != self.width:
            reason = f"has the shape {rows.shape}, but the model reads {self.width} columns"
            raise InputError(f"the table {reason}; give the columns that it was trained with")
        if progress is not None:
            progress.advance(len(rows), {})
        return rows

    def plain(self) -> Plain:
        return {"width": self.width}

    @classmethod
    def restore(cls, plain: Mapping[str, Any], _: Mapping[str, Tensor]) -> Self:
        return cls(int(plain["width"]))
