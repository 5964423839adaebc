"""Where in the network the auxiliary gradient helps or harms: the norms of its three parts, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attittud.decompose import Residual, harmful_mask, residual_tolerance
from attittud.guide import Guide
from attittud.kernels.products import dot, project
from attittud.step.forward import untraced_forward
from attittud.step.subspace import Subspace
from attittud_lab.models.compiling import eagerly

if TYPE_CHECKING:
    from attittud_lab.strategies.base import MicroLosses

PARTS = ("helpful", "harmful", "neutral")
MOST_GROUPS = 24
"""More rows nobody reads; layers are then taken together by the modules that hold them."""


def layer_norms(guide: Guide, losses: MicroLosses) -> dict[str, float]:
    """Norms by "group/part", over all auxiliary sources, with the basis in use; empty before there is one.

    The losses are computed once more, without dropout and without a trace in buffers, random states or `.grad`.
    """
    space = guide.subspace
    if space is None or (space.stored and space.rows is None) or (space.projects and not space.stored):
        return {}
    with untraced_forward(guide.model, guide.batch_norm, seed=0), torch.enable_grad(), eagerly(guide.model):
        primary = flat_gradient(losses.primary().mean(), space)
        # One source after the other: a single auxiliary gradient is held at a time.
        found = [
            part_squares(guide, space, primary, flat_gradient(loss, space)) for loss in losses.auxiliary().values()
        ]
    by_parameter = dict(zip(space.layout.names, torch.stack(found).sum(0).tolist(), strict=True))
    sums: dict[str, list[float]] = {}
    for name, group in groups(space.layout.names).items():
        sums[group] = [a + b for a, b in zip(sums.get(group, [0.0] * 3), by_parameter[name], strict=True)]
    return {
        f"{group}/{part}": square**0.5
        for group, squares in sums.items()
        for part, square in zip(PARTS, squares, strict=True)
    }


def groups(names: Sequence[str]) -> Mapping[str, str]:
    """The module of each parameter, shortened until there are at most `MOST_GROUPS` of them."""
    modules = {name: name.split(".")[:-1] or [name] for name in names}
    for depth in range(max(map(len, modules.values()), default=1), 0, -1):
        short = {name: ".".join(module[:depth]) for name, module in modules.items()}
        if len(set(short.values())) <= MOST_GROUPS:
            break
    return short


def flat_gradient(loss: Tensor, space: Subspace) -> Tensor:
    """The gradient over the shared parameters as one vector, in the order of V's columns."""
    found = torch.autograd.grad(loss, space.layout.parameters, allow_unused=True)
    flat = space.layout.empty()
    space.layout.add_(flat, found, fresh=True)
    return flat


def part_squares(guide: Guide, space: Subspace, primary: Tensor, auxiliary: Tensor) -> Tensor:
    """Squared norms of the helpful, harmful and neutral part of each parameter's gradient, parameters x 3."""
    views = list(zip(space.layout.views(primary), space.layout.views(auxiliary), strict=True))
    if not space.stored:
        return torch.stack([_by_sign(p, a) for p, a in views])
    assert space.rows is not None
    p, a = project(space.rows, primary), project(space.rows, auxiliary)
    harmful = harmful_mask(a, p)
    parts = torch.stack([torch.where(harmful, 0.0, a), torch.where(harmful, a, 0.0)])
    multiples = torch.zeros(2, dtype=torch.float64, device=a.device)
    if guide.include_mean:
        residual = Residual.of(p, dot(primary, primary), residual_tolerance(primary.dtype))
        extra = residual.coefficient(a, dot(primary, auxiliary))
        # The residual points along the primary gradient, so the sign of its coefficient decides.
        weights = torch.stack([extra.clamp(min=0), extra.clamp(max=0)])
        lifted = [residual.lift(weight) for weight in weights]
        parts = parts + torch.stack([vector for vector, _ in lifted])
        multiples = torch.stack([multiple for _, multiple in lifted])
    rows = []
    for basis, (own, gradient) in zip(space.layout.views(space.rows), views, strict=True):
        in_span = torch.tensordot(parts.to(own.dtype), basis.to(own.dtype), 1).double()
        helps, harms = in_span + multiples.view(2, *[1] * own.ndim) * own.double()
        rows.append(torch.stack([part.square().sum() for part in (helps, harms, gradient.double() - helps - harms)]))
    return torch.stack(rows)


def _by_sign(primary: Tensor, auxiliary: Tensor) -> Tensor:
    """Every coordinate is a direction of its own; nothing is neutral."""
    harmful, squares = harmful_mask(auxiliary, primary), auxiliary.double().square()
    zero = torch.zeros_like(squares)
    return torch.stack(
        [torch.where(harmful, zero, squares).sum(), torch.where(harmful, squares, zero).sum(), zero.sum()]
    )
