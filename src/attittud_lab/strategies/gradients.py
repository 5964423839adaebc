"""Gradients of several losses side by side, for the strategies that are not a `Guide`.

Which parameters are shared, and what the others receive, is as in a `Guide`: parameters that the primary and at least
one auxiliary loss reach are shared; all others get the gradients of their own tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Gradients = Sequence[Tensor | None]


@dataclass
class Sides:
    """One flat vector per loss over the shared parameters; the first is the primary task's."""

    shared: list[nn.Parameter]
    rows: list[Tensor]

    @classmethod
    def of(cls, model: nn.Module, parts: Iterable[Sequence[Tensor]]) -> Sides:
        """Differentiate the losses (separate graphs) and hand all but the shared parameters their gradients.

        Each part has the losses of one micro-batch; their gradients add up.
        """
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        found: list[Gradients] = []
        for losses in parts:  # the next one is computed when the graphs of this one are gone
            new: list[Gradients] = [torch.autograd.grad(loss, parameters, allow_unused=True) for loss in losses]
            found = [_sum(a, b) for a, b in zip(found, new, strict=True)] if found else new
            del losses
        shared = []
        for position, parameter in enumerate(parameters):
            own = [gradients[position] for gradients in found]
            reached = [gradient for gradient in own if gradient is not None]
            if own[0] is not None and len(reached) > 1:
                shared.append(position)
            elif reached:
                parameter.grad = torch.stack(reached).sum(0) if len(reached) > 1 else reached[0].clone()
        rows = [
            torch.cat([_flat(gradients[position], parameters[position]) for position in shared])
            for gradients in found
            if shared
        ]
        return cls([parameters[position] for position in shared], rows)

    def write(self, update: Tensor) -> None:
        """Give the shared parameters their pieces of the update."""
        pieces = update.split([parameter.numel() for parameter in self.shared])
        for parameter, piece in zip(self.shared, pieces, strict=True):
            parameter.grad = torch.empty_like(parameter).copy_(piece.view(parameter.shape))


def _sum(first: Gradients, second: Gradients) -> Gradients:
    return [b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)]


def _flat(gradient: Tensor | None, parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter).reshape(-1) if gradient is None else gradient.reshape(-1)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Of two vectors; 0 where one of them is zero."""
    norms = a.norm() * b.norm()
    return torch.where(norms > 0, torch.dot(a, b) / norms, 0.0)
