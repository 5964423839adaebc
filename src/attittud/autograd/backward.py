"""What the graph behind a loss reaches, and the gradients of that loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from attittud._torch import sequence_number
from attittud.autograd.layout import Layout, sparse_message

Named = Sequence[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class LossGraph:
    """Nodes behind a loss, and what it reaches."""

    nodes: set[Any]
    leaves: set[int]
    """Identities of parameters."""
    inputs: list[Tensor]
    """Other tensors that want a gradient."""


def walk(loss: Tensor) -> LossGraph:
    """The graph behind `loss`; raises where autograd.grad would silently return nothing."""
    nodes: set[Any] = set()
    leaves: set[int] = set()
    inputs: list[Tensor] = []
    stack = [loss.grad_fn] if loss.grad_fn is not None else []
    if loss.is_leaf:
        leaves.add(id(loss))
    while stack:
        node = stack.pop()
        if node in nodes:
            continue
        following = node.next_functions
        variable = None if following else getattr(node, "variable", None)
        if variable is not None:
            if isinstance(variable, nn.Parameter):
                leaves.add(id(variable))
            else:
                inputs.append(variable)
            continue
        if type(node).__name__ == "CheckpointFunctionBackward":
            raise RuntimeError(
                "a module under reentrant activation checkpointing hides its parameters from torch.autograd.grad; pass "
                "use_reentrant=False to torch.utils.checkpoint.checkpoint (Hugging Face: "
                "gradient_checkpointing_kwargs={'use_reentrant': False})"
            )
        nodes.add(node)
        stack.extend([later for later, _ in following if later is not None])
    return LossGraph(nodes, leaves, inputs)


@contextmanager
def written_into(layout: Layout, flat: Tensor, *, add: bool = False) -> Iterator[None]:
    """Inside, gradients of the layout's parameters go straight into `flat` and come back as zeros without memory.

    Or they are added to what it holds.

    A tensor hook sees a gradient when it is complete and before `torch.autograd.grad` hands it out, so that a whole
    gradient is never held twice. It costs a small copy for every parameter.
    """
    zeros: dict[torch.dtype, Tensor] = {}  # one for all: each would be a launch of its own

    def taker(name: str, view: Tensor) -> Callable[[Tensor], Tensor]:
        def take(gradient: Tensor) -> Tensor:
            if gradient.layout != torch.strided:
                raise ValueError(sparse_message(name))
            if add:
                view.add_(gradient)
            else:
                view.copy_(gradient)
            if gradient.dtype not in zeros:
                zeros[gradient.dtype] = torch.zeros((), dtype=gradient.dtype, device=gradient.device)
            return zeros[gradient.dtype].expand_as(gradient)

        return take

    pieces = zip(layout.names, layout.parameters, layout.views(flat if add else flat.zero_()), strict=True)
    handles = [p.register_hook(taker(name, view)) for name, p, view in pieces if p.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def frontier(loss: Tensor, edges: Sequence[GradientEdge]) -> list[GradientEdge]:
    """Those of `edges` behind which no other one lies: a backward pass that reaches them passes all of them."""
    wanted = {edge.node for edge in edges}
    followers: dict[Any, list[Any]] = {}
    stack: list[Any] = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node not in followers:
            followers[node] = following = [n for n, _ in node.next_functions if n is not None]
            stack.extend(following)
    leads_on: set[Any] = set()
    # A node of one thread has been made after all that it leads to, so that a second round mostly finds nothing.
    inner = sorted([node for node, following in followers.items() if following], key=sequence_number)
    before = -1
    while len(leads_on) > before:
        before = len(leads_on)
        for node in inner:
            following = followers[node]
            if not (wanted.isdisjoint(following) and leads_on.isdisjoint(following)):
                leads_on.add(node)
    return [edge for edge in edges if edge.node in followers and edge.node not in leads_on]
