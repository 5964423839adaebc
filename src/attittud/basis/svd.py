"""The top-k right singular vectors of J by randomized SVD: oversampling and power iterations (Halko
et al. 2011).
"""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.basis.base import Basis, Refresh, orthonormal_rows
from attittud.basis.exact import keep_top_
from attittud.basis.small import qr, singular
from attittud.engine.base import Jacobian
from attittud.kernels import transform_

# Halko et al. recommend 5 to 10 more rows than asked for, and one or two iterations for slowly
# decaying spectra.
OVERSAMPLING = 8
POWER_ITERATIONS = 2


class Svd(Basis):
    """Three products wJ and three products Jv in turn, or the rows of J themselves if m is small."""

    name = "svd"
    needs = "jacobian"
    # The passes alternate between J and Jᵀ, but the graph of an earlier micro-batch is already
    # freed.
    adds_up = False

    def working_rows(self, rank: int, examples: int) -> int:
        return min(rank + OVERSAMPLING, examples)

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:
        """Put the approximate right singular vectors of J, scaled by their singular values, into the
        rows; with few examples, J itself.

        It begins with rows ΠJ. A power iteration replaces orthonormal rows R by Qᵀ J, where Q is
        the orthonormal factor of J Rᵀ.
        """
        m = jacobian.examples
        count = refresh.rank + OVERSAMPLING
        if count >= jacobian.total():
            # The sketch would span all rows of J, so the rows themselves are used.
            refresh.put(jacobian.rows())
            refresh.sum_examples_()
            return
        dtype = jacobian.losses.dtype
        refresh.put(jacobian.left(refresh.gaussian(count, refresh.first, m, dtype=dtype)))
        for _ in range(POWER_ITERATIONS):
            rows = refresh.sum_examples_()
            orthonormal_rows(refresh)
            # The QR of all workers' rows, from the QRs of their parts.
            local, triangle = _qr(jacobian.right(rows))
            triangles, at = refresh.workers.stack_rows(triangle)
            weights = local @ _qr(triangles)[0][at]
            refresh.put(jacobian.left(weights.T.to(dtype), rows.zero_()))
        rows = refresh.sum_examples_()
        orthonormal_rows(refresh)
        # J ≈ (J Rᵀ) R, so the right singular vectors of the small factor J Rᵀ are coordinates in
        # terms of the rows R.
        small, _ = refresh.workers.stack_rows(_qr(jacobian.right(rows))[1])
        finite = torch.isfinite(small).all()
        sizes, right = singular(torch.where(finite, small, 0.0))
        # Rows are scaled by their singular values, so that `finish` recognises weak rows.
        scaled = torch.where(finite, sizes[:, None] * right, torch.nan)
        refresh.put(transform_(rows, scaled))

    def finish(self, refresh: Refresh) -> Tensor:
        return keep_top_(refresh)


def _qr(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Thin QR that passes NaN through."""
    finite = torch.isfinite(matrix).all()
    q, r = qr(torch.where(finite, matrix, 0.0))
    return torch.where(finite, q, torch.nan), torch.where(finite, r, torch.nan)
