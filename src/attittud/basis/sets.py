"""One row for each entry of the primary losses, in their order: the mean gradients of several protected sets.

Each entry is the mean loss of one set, so no per-example losses are needed. Rows are normalised before Gram-Schmidt, so that
a set with a small gradient counts as much as the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.basis.base import Basis, Refresh, orthonormal_rows
from attittud.engine.base import Jacobian
from attittud.kernels import gram


class Sets(Basis):
    name = "sets"
    needs = "jacobian"
    least = 1
    single = False

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:
        count = jacobian.examples
        if count > refresh.rank:
            raise ValueError(
                f"basis='sets' takes one loss for each protected set, and got {count} for rank={refresh.rank}. If these are "
                "losses of single examples, average them over each set first; else pass a larger rank"
            )
        # The workers' parts of a set are summed, and so are the parts of several calls.
        refresh.put(jacobian.left(torch.eye(count, device=refresh.layout.device), refresh.rows))

    def finish(self, refresh: Refresh) -> Tensor:
        refresh.sum_examples_()
        assert refresh.rows is not None
        squares = refresh.workers.sum_columns(gram(refresh.rows).diagonal().clone())
        refresh.rows.mul_(torch.where(squares > 0, squares.rsqrt(), 0.0).to(refresh.rows.dtype)[:, None])
        return orthonormal_rows(refresh)
