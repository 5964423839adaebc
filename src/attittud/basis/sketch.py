"""Gram-Schmidt, in row order, of ΠJ with Gaussian Π (k x m): the paper's Algorithm 2."""

from __future__ import annotations

from torch import Tensor

from attittud.basis.base import Basis, Refresh, orthonormal_rows
from attittud.engine.base import Jacobian


class Sketch(Basis):
    name = "sketch"
    needs = "jacobian"

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:
        weights = refresh.gaussian(refresh.rank, refresh.first, jacobian.examples, dtype=jacobian.losses.dtype)
        refresh.rows = jacobian.left(weights, refresh.rows)

    def finish(self, refresh: Refresh) -> Tensor:
        refresh.sum_examples_()
        return orthonormal_rows(refresh)
