"""The top-k right singular vectors of J, from its m x m Gram matrix: the reference for `sketch` and `svd`.

J's rows are formed (m x D): for small m, and to check the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.basis.base import Basis, Refresh
from attittud.basis.orthonormal import orthonormalise_, tolerance
from attittud.engine.base import Jacobian
from attittud.linalg import transform_


class Exact(Basis):
    name = "exact"
    needs = "jacobian"

    def working_rows(self, rank: int, examples: int) -> int:
        return examples

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:
        rows = jacobian.left(torch.eye(jacobian.examples, device=jacobian.losses.device))
        refresh.rows = rows if refresh.rows is None else torch.cat([refresh.rows, rows])

    def finish(self, refresh: Refresh) -> Tensor:
        assert refresh.rows is not None
        refresh.rows, finite = top_singular_(refresh.rows, refresh.rank)
        return finite


def top_singular_(rows: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The top right singular vectors of `rows` (overwritten), and whether `rows` was finite.

    rows = L Q with orthonormal Q by Cholesky of the Gram matrix; the small L has the same singular values, and its
    decomposition keeps digits that an eigendecomposition of the Gram matrix itself would have squared away.
    """
    found = orthonormalise_(rows)
    _, sizes, right = torch.linalg.svd(found.factor)
    kept = sizes > tolerance(rows.dtype) * sizes[0]
    rank = min(rank, rows.shape[0])
    return transform_(rows, torch.where(kept[:, None], right, 0.0)[:rank]), found.finite
