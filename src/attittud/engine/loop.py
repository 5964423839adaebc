"""One vector-Jacobian product after the other on the retained graph: works for everything, lowest memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attittud.engine.base import Engine, Gradients
from attittud.parameters import Layout


class Loop(Engine):
    name = "loop"

    def products(self, losses: Tensor, layout: Layout, weights: Tensor) -> Iterator[tuple[slice, Gradients]]:
        for j, row in enumerate(weights):
            gradients = torch.autograd.grad(losses, layout.parameters, row, retain_graph=True, allow_unused=True)
            yield slice(j, j + 1), [None if gradient is None else gradient[None] for gradient in gradients]
