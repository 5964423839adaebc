"""One vector-Jacobian product after the other on the retained graph: works for every model and
needs little memory.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import ClassVar

from torch import Tensor

from attittud._torch import CUDA_GRAPH_TREES, kept_graph
from attittud.autograd.layout import Layout, run_backward, unconverted
from attittud.engine.base import Engine


class Loop(Engine):
    name = "loop"
    on_shards: ClassVar[str | None] = name

    def write(
        self,
        losses: Tensor,
        layout: Layout,
        weights: Tensor,
        out: Tensor,
        *,
        fresh: bool,
    ) -> None:
        compiled = CUDA_GRAPH_TREES in sys.modules
        # Only for copies: torch adds tensors of another type one by one.
        parameters = tuple(
            unconverted(losses, layout, layout.parameters) if fresh else layout.parameters
        )
        for row, to in zip(weights, out, strict=True):
            with kept_graph() if compiled else nullcontext():
                gradients = run_backward(
                    (losses,), (row,), True, False, parameters, True, accumulate_grad=False
                )
            layout.add_(to, gradients, fresh=fresh)
            del gradients  # freed before the next row is computed
