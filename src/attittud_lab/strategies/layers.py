"""Where in the network the auxiliary gradient helps or harms: the norms of its three parts, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from attittud import Guide, isolated_forward
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
    if space is None or guide.basis.keeps_graph:
        return {}
    with isolated_forward(guide.model, guide.batch_norm, seed=0), torch.enable_grad(), eagerly(guide.model):
        primary = space.gradient(losses.primary().mean())
        # One source after the other: a single auxiliary gradient is held at a time.
        found = [
            space.squares(primary, space.gradient(loss), include_mean=guide.include_mean)
            for loss in losses.auxiliary().values()
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
