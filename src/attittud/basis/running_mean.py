"""A running mean m of the mean primary gradients (k = 1), for the guards `gru` and `bloop`.

At every refresh m becomes rate * g_prim + (1 - rate) * m, and V is m/‖m‖. A gradient that points along m counts as helpful,
whatever the primary gradient of the step is, so a step without a refresh needs no primary gradient. With rate=1, m is the
mean gradient of the last refresh.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from attittud.basis.base import Basis, Refresh
from attittud.basis.orthonormal import orthonormalise_
from attittud.basis.subspace import Stored


class Remembering(Stored):
    """V with a factor: factor @ V are the rows from which V was made. The directions point along these rows."""

    oriented = True

    def replace(self, rows: Tensor, finite: Tensor, refresh: Refresh | None = None) -> None:
        super().replace(rows, finite, refresh)
        if refresh is not None and refresh.factor is not None:
            old, new = self.factor, refresh.factor
            self.factor = new if old is None else torch.where(finite, new, old)

    def load(self, rows: Tensor, factor: list[Any] | None = None) -> None:
        super().load(rows)
        if factor is None:
            raise ValueError(
                "the state has a running mean without its length ('factor'); leave the state out, so that the mean starts again"
            )
        found = torch.tensor(factor, dtype=torch.float64, device=self.layout.device)
        count = self.rows.shape[0]
        if found.shape[-2:] != (count, count) or found.numel() != count * self.active.numel():
            raise ValueError(f"'factor' in the state has shape {tuple(found.shape)}, which does not fit {count} rows")
        self.factor = found


class RunningMean(Basis):
    name = "running_mean"
    needs = "mean"
    together = True
    subspace = Remembering

    def __init__(self, rate: float = 0.1, start: Literal["zero", "first"] = "first") -> None:
        if not isinstance(rate, (int, float)) or not 0 < rate <= 1:
            raise ValueError(f"rate of a running mean must be above 0 and at most 1, got {rate!r}")
        if start not in ("zero", "first"):
            raise ValueError(f"start of a running mean must be 'zero' or 'first' (the first gradient), got {start!r}")
        self.rate, self.start = float(rate), start

    def rank(self, asked: int) -> int:
        return 1

    def finish(self, refresh: Refresh) -> Tensor:
        refresh.sum_examples_()
        rows = refresh.rows
        assert rows is not None
        if refresh.old is not None:
            mean, factor = refresh.old
            weights = (1 - self.rate) * factor.to(rows.dtype)
            refresh.columns.add_product_(rows.mul_(self.rate), weights, mean.to(rows.dtype))
        elif self.start == "zero":
            rows.mul_(self.rate)
        found = orthonormalise_(rows, refresh.workers.sum_columns, columns=refresh.columns)
        refresh.remember(found.factor)
        return found.finite
