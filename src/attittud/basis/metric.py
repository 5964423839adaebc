"""`metric="adam"`: inner products ⟨x, P⁻¹y⟩ with P = sqrt(v) + eps, by which Adam divides a gradient.

V is orthonormal for gradients that are scaled by P^(-1/2), and a correction is scaled back by P^(1/2). If the mean gradient r
is the only direction, dropping it turns g into g - c r with c = ⟨g, P⁻¹r⟩/⟨r, P⁻¹r⟩. P is taken at the last refresh.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attittud.autograd.layout import Layout, local
from attittud.basis.base import Basis, Refresh
from attittud.basis.subspace import Directions, Stored
from attittud.kernels import Products


class Scaled(Stored):
    """Gradients are scaled before they are projected, and corrections are scaled back."""

    saved = False  # P is not saved, so the first step after a resume refreshes
    scale: Tensor | None = None  # P^(-1/2)

    @property
    def remembered(self) -> tuple[Tensor, Tensor] | None:
        found = super().remembered
        assert self.scale is not None
        return None if found is None else (found[0] / self.scale, found[1])

    def replace(self, rows: Tensor, finite: Tensor, refresh: Refresh | None = None) -> None:
        super().replace(rows, finite, refresh)
        assert refresh is not None and refresh.scale is not None
        if self.scale is None:
            self.scale = refresh.scale
        else:
            # In place, because a captured CUDA graph may refer to it.
            self.scale.copy_(torch.where(finite, refresh.scale, self.scale))

    def scaled(self, x: Tensor) -> Tensor:
        assert self.scale is not None
        return x * self.scale

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        return super().inner(self.scaled(x), self.scaled(y))

    def project(self, x: Tensor) -> Tensor:
        return super().project(self.scaled(x))

    def products(self, x: Tensor, y: Tensor | None) -> Products:
        assert y is not None
        return Products(self.project(x), self.project(y), self.inner(x, x), self.inner(y, y), self.inner(x, y))

    def add_(self, x: Tensor, weights: Tensor) -> None:
        assert self.scale is not None
        change = torch.zeros_like(x)
        super().add_(change, weights)
        x.add_(change.div_(self.scale))

    def lift_(self, weights: Tensor, x: Tensor, y: Tensor | None, x_factor: float | Tensor, y_factor: Tensor) -> Tensor:
        return Directions.lift_(self, weights, x, y, x_factor, y_factor)

    def squares(self, primary: Tensor, auxiliary: Tensor, *, include_mean: bool = False) -> Tensor:
        raise ValueError("norms of single parameters are not available with metric='adam'; use metric='euclidean'")


class InMetric(Basis):
    """A mixin for another basis: it scales the rows before that basis finishes them."""

    subspace = Scaled
    optimizer: torch.optim.Optimizer

    def finish(self, refresh: Refresh) -> Tensor:
        refresh.rescale_(adam_scale(self.optimizer, refresh.layout))
        return super().finish(refresh)  # type: ignore[safe-super] # the next class is a basis


def in_metric(basis: type[Basis], optimizer: torch.optim.Optimizer | None) -> type[Basis]:
    """Return the same basis in Adam's metric."""
    if not issubclass(basis.subspace, Stored):
        raise ValueError(
            f"metric='adam' needs a basis that is stored, not basis={basis.name!r}; use metric='euclidean'"
        )
    found: Any = optimizer
    while hasattr(found, "optimizer"):
        found = found.optimizer  # wrappers of Accelerate and Lightning
    if not isinstance(found, torch.optim.Optimizer):
        raise TypeError(
            f"metric='adam' needs the second moments of an Adam or AdamW optimizer: pass it as optimizer=; got {optimizer!r}"
        )
    if any("betas" not in group or "eps" not in group for group in found.param_groups):
        raise TypeError(f"metric='adam' needs an optimizer with betas and eps, not {type(found).__name__}; use AdamW")
    subspace = type("Scaled", (Scaled, basis.subspace), {})
    return type(basis.__name__, (InMetric, basis), {"subspace": subspace, "optimizer": found})


def adam_scale(optimizer: torch.optim.Optimizer, layout: Layout) -> Tensor:
    """(sqrt(v) + eps)^(-1/2) over the parameters of a layout, as one vector; 1 where Adam has no moments yet."""
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    found = []
    for name, parameter in layout.named:
        if id(parameter) not in groups:
            raise ValueError(
                f"metric='adam': parameter {name!r} is not in the optimizer; add it, or leave it out with parameters="
            )
        group, state = groups[id(parameter)], optimizer.state.get(parameter)
        if not state:
            found.append(torch.ones_like(local(parameter), dtype=layout.dtype))
            continue
        if not isinstance(state.get("exp_avg_sq"), Tensor):
            raise TypeError(
                f"metric='adam': {type(optimizer).__name__} keeps no second moments 'exp_avg_sq'; use torch.optim.Adam or AdamW"
            )
        correction = 1 - group["betas"][1] ** torch.as_tensor(state["step"], dtype=torch.float64)
        moments = local(state["exp_avg_sq"]).to(layout.dtype) / correction.to(layout.device, layout.dtype)
        scale = (moments.sqrt() + group["eps"]).rsqrt()
        # A loss scaler can undo the first step of a fused Adam. The moments then belong to step 0, and the weight is 1.
        found.append(torch.where(correction.to(layout.device) > 0, scale, 1.0))
    return layout.flatten(found)
