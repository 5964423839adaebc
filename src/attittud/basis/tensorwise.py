"""`scope="tensor"`: gradients are compared tensor by tensor, for the guard `ogpsa`.

Every row of a basis becomes one direction for each parameter: the row's part over this parameter, orthonormalised against
the parts of the other rows. V then has k * T directions for T parameters, but still k rows in memory.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attittud.autograd.layout import Layout
from attittud.basis.base import Basis, Refresh
from attittud.basis.subspace import Directions, Stored
from attittud.kernels import Products


class Blocks(Stored):
    """Directions that are zero outside of one parameter; they are numbered row by row."""

    def lengths(self) -> Tensor:
        return self.layout.segments.squares(self.rows).sqrt().flatten()

    def project(self, x: Tensor) -> Tensor:
        return self.layout.segments.project(self.rows, x).flatten()

    def products(self, x: Tensor, y: Tensor | None) -> Products:
        assert y is not None
        return Products(self.project(x), self.project(y), self.inner(x, x), self.inner(y, y), self.inner(x, y))

    def add_(self, x: Tensor, weights: Tensor) -> None:
        self.layout.segments.add_rows_(x, self.rows, weights.view(self.rows.shape[0], -1))

    def lift_(self, weights: Tensor, x: Tensor, y: Tensor | None, x_factor: float | Tensor, y_factor: Tensor) -> Tensor:
        return Directions.lift_(self, weights, x, y, x_factor, y_factor)

    def squares(self, primary: Tensor, auxiliary: Tensor, *, include_mean: bool = False) -> Tensor:
        raise ValueError("norms of single parameters are not available with scope='tensor'; use scope='model'")


class Tensorwise(Basis):
    """A mixin for another basis: that basis finishes the rows of each parameter separately, all at once or one by one."""

    subspace = Blocks

    def finish(self, refresh: Refresh) -> Tensor:
        if self.together:
            refresh.separate()
            return super().finish(refresh)  # type: ignore[safe-super] # the next class is a basis
        layout, nothing = refresh.layout, [None] * len(refresh.layout.named)
        rows, single = (nothing if x is None else layout.parts(x) for x in (refresh.rows, refresh.single))
        old = nothing if refresh.old is None else list(zip(layout.parts(refresh.old[0]), refresh.old[1], strict=True))
        parts, finite = [], []
        for pair, *held, before in zip(layout.named, rows, single, old, strict=True):
            own, examples = (None if x is None else x.contiguous() for x in held)
            part = replace(refresh, layout=Layout([pair]), rows=own, single=examples, old=before)
            finite.append(super().finish(part))  # type: ignore[safe-super] # the next class is a basis
            parts.append(part)
        refresh.put(torch.cat([part.rows for part in parts if part.rows is not None], dim=1))
        factors = [part.factor for part in parts if part.factor is not None]
        if factors:
            refresh.remember(torch.stack(factors))
        return torch.stack(finite).all()


def tensorwise(basis: type[Basis]) -> type[Basis]:
    """Return the same basis, but tensor by tensor."""
    if not issubclass(basis.subspace, Stored):
        raise ValueError(f"scope='tensor' needs a basis that is stored, not basis={basis.name!r}; use scope='model'")
    subspace = type("Blocks", (Blocks, basis.subspace), {})
    return type(basis.__name__, (Tensorwise, basis), {"subspace": subspace})
