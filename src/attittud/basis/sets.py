"""One row for each entry of the primary losses, in their order: the mean gradients of several protected sets.

Each entry is the mean loss of one set, so no per-example losses are needed. Rows are normalised before Gram-Schmidt, so that
a set with a small gradient counts as much as the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.basis.base import Basis, Refresh, orthonormal_rows
from attittud.engine.base import Jacobian


class Sets(Basis):
    name = "sets"
    needs = "jacobian"
    one_product = True
    together = True
    least = 1
    single = False

    def takes_mean(self, refresh: Refresh, count: int) -> bool:
        # The only row of J: the pass that computes the mean gradient gives it too.
        return count == 1 and (refresh.rows is None or refresh.rows.shape[0] == 1)

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
        squares = refresh.workers.sum_columns(refresh.columns.squares(refresh.rows))
        refresh.columns.scale_(refresh.rows, torch.where(squares > 0, squares.rsqrt(), 0.0))
        return orthonormal_rows(refresh)
