"""What an autograd graph reaches, found by walking it, and the gradients of a loss."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from attittud.autograd.layout import Layout, sparse_message

Named = Sequence[tuple[str, nn.Parameter]]


def keep_saved_tensors(model: nn.Module) -> None:
    """Let a refresh walk the graph of a compiled model several times.

    By default a compiled backward pass may overwrite what the forward pass saved ("donated buffers"), and torch refuses
    retain_graph=True.
    """
    if any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None for m in model.modules()):
        from torch._functorch import config

        if config.donated_buffer:
            config.donated_buffer = False
            torch.compiler.reset()  # what has been compiled so far counts on it


def in_cuda_graphs() -> bool:
    """Whether passes may be CUDA graphs (mode="reduce-overhead"), which write into the same memory again and again."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return False
    try:
        managers = trees.get_obj(trees.local, "tree_manager_containers")
        return any(container.tree_manager is not None for container in managers.values())
    except AssertionError:  # torch before 2.13, in a thread that has never used any
        return False
    except AttributeError:  # nobody promised these names: copies are never wrong
        return True


def owned(gradient: Tensor) -> Tensor:
    """A gradient that is kept while other passes of the step run: a copy where one of those may overwrite it."""
    return gradient.clone() if in_cuda_graphs() else gradient


@contextmanager
def kept_graph() -> Iterator[None]:
    """Around a backward pass that keeps its graph: code compiled with mode="reduce-overhead" runs its kernels one by one.

    Its CUDA graphs count on the saved tensors dying in the backward pass. Where they live on, to be used again, torch
    frees memory that is not its own ("invalid device pointer"). The same way out as torch takes where it skips a graph.
    """
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:  # nothing was compiled so
        yield
        return
    manager, run = trees.CUDAGraphTreeManager, trees.CUDAGraphTreeManager._run
    manager._run = lambda self, inputs, number: self.ids_to_funcs[number].model(inputs)
    try:
        yield
    finally:
        manager._run = run


@dataclass(frozen=True)
class Graph:
    """Nodes behind a loss, and what it reaches."""

    nodes: set[Any]
    leaves: set[int]
    """Identities of parameters."""
    inputs: list[Tensor]
    """Other tensors that want a gradient."""

    def overlaps(self, other: Graph) -> bool:
        """Whether the two share a node that a backward pass through one of them would free."""
        return not self.nodes.isdisjoint(other.nodes)

    def saved_by_compiled(self) -> list[Tensor]:
        """What compiled code has saved for its backward pass, to be held while other forward passes come before that one.

        The CUDA graphs of mode="reduce-overhead" do not see what only autograd holds. They take it for dead where they record
        another function, and give its memory away (https://github.com/pytorch/pytorch/pull/194124).

        But not what lies elsewhere, such as by activation checkpointing, which would run once for every tensor asked for.
        """
        if not in_cuda_graphs():
            return []
        compiled = [node for node in self.nodes if type(node).__name__ == "CompiledFunctionBackward"]
        return [tensor for node in compiled if not _packed(node) for tensor in node.saved_tensors]


def _packed(node: Any) -> bool:
    """Whether hooks for saved tensors keep those of a node; where torch should not know these names, they do not."""
    return any(getattr(saved, "unpack_hook", None) is not None for saved in getattr(node, "_raw_saved_tensors", ()))


def walk(loss: Tensor) -> Graph:
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
        variable = getattr(node, "variable", None)
        if variable is not None and not node.next_functions:
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
        stack.extend(following for following, _ in node.next_functions if following is not None)
    return Graph(nodes, leaves, inputs)


def gradients(loss: Tensor, named: Named, *, retain_graph: bool, weights: Tensor | None = None) -> dict[int, Tensor]:
    """Gradients by identity of the parameter; parameters the loss does not reach are missing.

    `weights`: of the entries of a loss that is a vector.
    """
    parameters = [parameter for _, parameter in named]
    if not parameters:
        return {}
    with kept_graph() if retain_graph else nullcontext():
        found = torch.autograd.grad(loss, parameters, weights, retain_graph=retain_graph, allow_unused=True)
    return {id(p): gradient for p, gradient in zip(parameters, found, strict=True) if gradient is not None}


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


def needed_later(graphs: list[Graph]) -> list[bool]:
    """For each graph whether a later one shares a part of it: only then it may not be freed."""
    return [any(graph.overlaps(later) for later in graphs[i + 1 :]) for i, graph in enumerate(graphs)]


def frontier(loss: Tensor, edges: Sequence[GradientEdge]) -> list[GradientEdge]:
    """Those of `edges` behind which no other one lies: a backward pass that reaches them passes all of them."""
    wanted = {edge.node for edge in edges}
    leads_on: dict[Any, bool] = {}
    stack: list[tuple[Any, bool]] = [(loss.grad_fn, False)]
    while stack:
        node, finished = stack.pop()
        following = [n for n, _ in node.next_functions if n is not None]
        if finished:
            leads_on[node] = any(n in wanted or leads_on.get(n, False) for n in following)
        elif node not in leads_on:
            leads_on[node] = False
            stack.append((node, True))
            stack.extend((n, False) for n in following if n not in leads_on)
    return [edge for edge in edges if edge.node in leads_on and not leads_on[edge.node]]
