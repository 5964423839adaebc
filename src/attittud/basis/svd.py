"""The top-k right singular vectors of J by randomized SVD: oversampling and power iterations (Halko et al. 2011)."""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.basis.base import Basis, Refresh
from attittud.basis.exact import top_singular_
from attittud.basis.orthonormal import orthonormalise_
from attittud.engine.base import Jacobian
from attittud.linalg import transform_

# Halko et al. recommend 5 to 10 more rows than asked for, and one or two iterations for slowly decaying spectra.
OVERSAMPLING = 8
POWER_ITERATIONS = 2


class Svd(Basis):
    name = "svd"
    needs = "jacobian"
    # Its passes alternate between J and Jᵀ, which the graph of an earlier micro-batch no longer allows.
    adds_up = False

    def working_rows(self, rank: int, examples: int) -> int:
        return min(rank + OVERSAMPLING, examples)

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:
        m, count = jacobian.examples, refresh.rank + OVERSAMPLING
        if count >= m:
            # The sketch would span all of J's rows: take them as they are.
            refresh.rows = jacobian.left(torch.eye(m, device=jacobian.losses.device))
            return
        dtype = jacobian.losses.dtype
        rows = jacobian.left(refresh.gaussian(count, refresh.examples, m, dtype=dtype))
        for _ in range(POWER_ITERATIONS):
            orthonormalise_(rows)
            weights = _orthonormal_columns(jacobian.right(rows))
            rows = jacobian.left(weights.T.to(dtype), rows.zero_())
        orthonormalise_(rows)
        # J ≈ (J Qᵀ) Q: the small factor's right singular vectors, in terms of Q.
        small = jacobian.right(rows)
        finite = torch.isfinite(small).all()
        _, sizes, right = torch.linalg.svd(torch.where(finite, small, 0.0), full_matrices=False)
        # Rows scaled by their singular values: weak ones are recognised by `finish` like everywhere else.
        scaled = torch.where(finite, sizes[:, None] * right, torch.nan)
        refresh.rows = transform_(rows, scaled)

    def finish(self, refresh: Refresh) -> Tensor:
        assert refresh.rows is not None
        refresh.rows, finite = top_singular_(refresh.rows, refresh.rank)
        return finite


def _orthonormal_columns(matrix: Tensor) -> Tensor:
    """An orthonormal basis of the columns of a small m x l matrix (NaN passes through)."""
    finite = torch.isfinite(matrix).all()
    return torch.where(finite, torch.linalg.qr(torch.where(finite, matrix, 0.0)).Q, torch.nan)
