"""The top-k right singular vectors of J, recomputed in every step and never stored.

With K = JJᵀ = UΛUᵀ (m x m) and A = Λ_k^(-1/2) U_kᵀ the basis is V = AJ. So V g = A (J g) and Vᵀ w = Jᵀ (Aᵀ w), and products
with J replace the stored V. This takes O(m²) memory, for models too large to store k x D numbers.

The primary gradient is Jᵀ(1/m), so its products come from K. A single product wᵀJ adds the primary gradient and the
correction to the auxiliary gradient, so only `.grad` is as long as the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from attittud.autograd.layout import written_into
from attittud.basis.base import Basis, Refresh, Scope
from attittud.basis.orthonormal import tolerance
from attittud.basis.subspace import Directions
from attittud.engine.base import Jacobian
from attittud.engine.hooks import HookedJacobian
from attittud.kernels import Products, dot


class ProductsWithJ(Directions):
    """V = AJ for one step."""

    _gram: Tensor | None = None  # K
    _factor: Tensor | None = None  # A (k x m, k at most m); all zero if K is not finite

    _jacobian: HookedJacobian | None = None
    _scope: Scope = nullcontext  # a context around every use of J's graph
    _shrink: float | Tensor = 1.0  # the factor of J's losses

    def replace(self, rows: Tensor, finite: Tensor, refresh: Refresh | None = None) -> None:
        super().replace(rows, finite)
        assert refresh is not None and isinstance(refresh.jacobian, HookedJacobian)
        # J is restricted to the parameters that turned out to be shared.
        self._jacobian = refresh.jacobian.over(self.layout)
        self._scope, self._shrink = refresh.scope, refresh.shrink

    @property
    def jacobian(self) -> HookedJacobian:
        assert self._jacobian is not None, "this step is over"
        return self._jacobian

    def release(self) -> None:
        self.jacobian.record.close()
        self._jacobian = self._gram = self._factor = None
        self._scope = nullcontext

    def project(self, x: Tensor) -> Tensor:
        return self._project([x])[:, 0]

    def products(self, x: Tensor, y: Tensor | None) -> Products:
        if y is None:
            return self._products_with_mean(x)
        both = self._project([x, y])
        return Products(both[:, 0], both[:, 1], dot(x, x), dot(y, y), dot(x, y))

    def _products_with_mean(self, x: Tensor) -> Products:
        columns = self._columns([x])[:, 0]
        assert self._factor is not None and self._gram is not None
        mean = self._mean(self._gram.dtype)
        of_mean = self._gram @ mean
        a, p = (self._factor @ torch.where(self.finite, rows, 0.0) for rows in (columns, of_mean))
        return Products(a, p, dot(x, x), mean @ of_mean, columns @ mean)

    def add_(self, x: Tensor, weights: Tensor) -> None:
        assert self._factor is not None
        if bool(self.finite):  # else V is zero, but zero times a J with NaN or Inf is not
            with self._scope():
                self.jacobian.left((weights @ self._factor)[None], x[None])

    def lift_(self, weights: Tensor, x: Tensor, y: Tensor | None, x_factor: float | Tensor, y_factor: Tensor) -> Tensor:
        if y is not None:
            return super().lift_(weights, x, y, x_factor, y_factor)
        assert self._factor is not None
        jacobian, mean = self.jacobian, self._mean(weights.dtype)
        row = weights @ self._factor + y_factor * mean
        x.mul_(x_factor)
        with self._scope(), jacobian.record.active(), written_into(self.layout, x, add=True):
            weights = row.to(jacobian.losses)
            self.workers.gradients(jacobian.losses, weights, self.layout.parameters, retain_graph=True)
        return x

    def _mean(self, dtype: torch.dtype) -> Tensor:
        """Weights of J's rows that give the primary gradient."""
        m = self.jacobian.examples
        return torch.ones(m, dtype=dtype, device=self.layout.device) / (m * self._shrink)

    def _project(self, vectors: Sequence[Tensor]) -> Tensor:
        """V times each vector, k x l."""
        columns = self._columns(vectors)
        assert self._factor is not None
        return self._factor @ torch.where(self.finite, columns, 0.0)

    def _columns(self, vectors: Sequence[Tensor]) -> Tensor:
        """J times each vector, m x l; also computes A if it is not known yet."""
        with self._scope():
            if self._factor is not None:
                return self.jacobian.right(vectors)
            self._gram, columns = self.jacobian.gram_and_right(vectors)
        self._factor = self._decompose(self._gram)
        return columns

    def _decompose(self, gram: Tensor) -> Tensor:
        self.finite = torch.isfinite(gram).all()
        values, vectors = torch.linalg.eigh(torch.where(self.finite, gram, 0.0))
        count = min(self.rank, gram.shape[0])
        values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
        # The values are squared singular values. Rounding in K hides values below `smallest`.
        smallest = max(tolerance(self.layout.dtype) ** 2, 8 * gram.shape[0] * torch.finfo(gram.dtype).eps)
        kept = values > smallest * values[0]
        self.active = kept
        return torch.where(kept[:, None], vectors.T / torch.where(kept, values, 1.0).sqrt()[:, None], 0.0)


class Implicit(Basis):
    name = "implicit"
    same_as = "exact"
    needs = "jacobian"
    stored = False
    subspace = ProductsWithJ
    keeps_graph = True
    # K has an entry for every pair of examples, including pairs from different micro-batches.
    adds_up = False

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:
        refresh.keep(jacobian)

    def finish(self, refresh: Refresh) -> Tensor:
        refresh.put(refresh.layout.empty(0))
        return torch.ones((), dtype=torch.bool, device=refresh.layout.device)
