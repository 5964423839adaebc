"""The mean primary gradient, normalised (k = 1): the paper's `unit_avg_grad`, the subspace of
one-sided PCGrad.
"""

from __future__ import annotations

from torch import Tensor

from attittud.basis.base import Basis, Refresh, orthonormal_rows


class Mean(Basis):
    """V has one row, g_prim / ‖g_prim‖, so the single sign compared is that of ⟨g_aux, g_prim⟩."""

    name = "mean"
    needs = "mean"

    def rank(self, asked: int) -> int:
        return 1

    def finish(self, refresh: Refresh) -> Tensor:
        refresh.sum_examples_()
        return orthonormal_rows(refresh)
