"""k random orthonormal vectors of R^D: an ablation that knows nothing of the primary task."""

from __future__ import annotations

from torch import Tensor

from attittud.basis.base import Basis, Refresh, orthonormal_rows
from attittud.linalg import chunk_size


class Random(Basis):
    name = "random"
    needs = "nothing"

    def finish(self, refresh: Refresh) -> Tensor:
        rows = refresh.layout.empty(refresh.rank)
        size = chunk_size(rows)
        for start in range(0, rows.shape[1], size):
            target = rows[:, start : start + size]
            target.copy_(refresh.gaussian(refresh.rank, start, target.shape[1], dtype=rows.dtype))
        refresh.rows = rows
        return orthonormal_rows(refresh)
