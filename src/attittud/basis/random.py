"""k random orthonormal vectors of R^D: an ablation that ignores the primary task."""

from __future__ import annotations

from torch import Tensor

from attittud.basis.base import Basis, Refresh, orthonormal_rows
from attittud.kernels import chunk_size


class Random(Basis):
    """Gram-Schmidt of Gaussian rows, of which each worker makes only its own columns."""

    name = "random"
    needs = "nothing"

    def finish(self, refresh: Refresh) -> Tensor:
        """Draw this worker's columns in chunks, because random numbers need more memory than rows."""
        rows = refresh.layout.empty(refresh.rank)
        size = chunk_size(rows)
        for columns, first in refresh.workers.columns(refresh.layout):
            for start in range(columns.start, columns.stop, size):
                target = rows[:, start : min(start + size, columns.stop)]
                number = first + start - columns.start  # of the first column, in V
                target.copy_(
                    refresh.gaussian(refresh.rank, number, target.shape[1], dtype=rows.dtype)
                )
        refresh.put(rows)
        return orthonormal_rows(refresh)
