"""The top-k right singular vectors of J, from its m x m Gram matrix: the reference for `sketch` and
`svd`.

It forms the rows of J (m x D), so use it for small m, and to check the other bases.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.basis.base import Basis, Refresh, orthonormalise_, tolerance
from attittud.basis.small import singular
from attittud.engine.base import Jacobian
from attittud.kernels import transform_


class Exact(Basis):
    """All m rows of J are formed, so the work is O(m D (m + k))."""

    name = "exact"
    needs = "jacobian"
    one_product = True

    def working_rows(self, rank: int, examples: int) -> int:
        return examples

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:
        rows = jacobian.rows()
        if refresh.rows is not None:
            rows = torch.cat([refresh.rows, rows])
        refresh.put(rows)

    def finish(self, refresh: Refresh) -> Tensor:
        refresh.sum_examples_()
        return keep_top_(refresh)


def keep_top_(refresh: Refresh) -> Tensor:
    """Replace the rows by their top right singular vectors; returns whether the rows were finite.

    A Cholesky decomposition of the Gram matrix gives rows = L Q with orthonormal Q. The small
    matrix L has the same singular values as the rows. Decomposing L keeps digits that an
    eigendecomposition of the Gram matrix would lose.
    """
    rows = refresh.rows
    assert rows is not None
    orthonormal = orthonormalise_(rows, refresh.workers.sum_columns)
    sizes, right = singular(orthonormal.factor)
    is_significant = sizes > tolerance(rows.dtype) * sizes[0]
    rank = min(refresh.rank, rows.shape[0])
    refresh.put(transform_(rows, torch.where(is_significant[:, None], right, 0.0)[:rank]))
    return orthonormal.finite
