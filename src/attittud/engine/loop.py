"""One vector-Jacobian product after the other on the retained graph: works for everything, lowest memory."""

from __future__ import annotations

import sys
from collections.abc import Set
from contextlib import nullcontext

import torch
from torch import Tensor

from attittud._torch import CUDA_GRAPH_TREES, kept_graph
from attittud.autograd.layout import Layout
from attittud.engine.base import Engine


class Loop(Engine):
    name = "loop"

    def write(
        self,
        losses: Tensor,
        layout: Layout,
        weights: Tensor,
        out: Tensor,
        *,
        fresh: bool,
        present: Set[int] = frozenset(),
    ) -> None:
        """`present`: parameters (by identity) whose part of `out` is complete already."""
        compiled = CUDA_GRAPH_TREES in sys.modules
        for row, place in zip(weights, out, strict=True):
            with kept_graph() if compiled else nullcontext():
                found = torch.autograd.grad(losses, layout.parameters, row, retain_graph=True, allow_unused=True)
            wanted = [None if id(p) in present else g for p, g in zip(layout.parameters, found, strict=True)]
            layout.add_(place, wanted, fresh=fresh)
            del found, wanted  # before the next row is computed
