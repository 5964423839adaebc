"""Gram-Schmidt, in row order, of ΠJ with Gaussian Π (k x m): the paper's Algorithm 2."""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.basis.base import Basis, Refresh, orthonormal_rows
from attittud.engine.base import Jacobian
from attittud.kernels import add_product_, transform_


class Sketch(Basis):
    name = "sketch"
    needs = "jacobian"
    one_product = True

    def working_rows(self, rank: int, examples: int) -> int:
        return min(rank, examples)

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:
        m, count = jacobian.examples, refresh.rank
        if isinstance(refresh.first, int):
            if refresh.complete:
                count = min(count, refresh.first + m)
            elif refresh.first + m <= count // 4:
                # More examples may follow. As long as there are few, J itself is much smaller than
                # ΠJ.
                refresh.hold(jacobian.rows())
                return
        if refresh.single is not None:
            earlier = refresh.gaussian(
                count, 0, refresh.single.shape[0], dtype=refresh.single.dtype
            )
            rows = refresh.layout.empty(count).zero_()
            add_product_(rows, earlier, refresh.single)
            refresh.put(rows)
        weights = refresh.gaussian(count, refresh.first, m, dtype=jacobian.losses.dtype)
        refresh.put(jacobian.left(weights, refresh.rows))

    def finish(self, refresh: Refresh) -> Tensor:
        if refresh.single is not None:
            count = refresh.single.shape[0]
            square = refresh.gaussian(count, 0, count, dtype=torch.float64)
            refresh.put(transform_(refresh.single, square))
        refresh.sum_examples_()
        # m examples have at most m directions, so later rows hold only rounding noise.
        return orthonormal_rows(refresh, most=refresh.examples)
