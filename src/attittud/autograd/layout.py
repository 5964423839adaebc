"""The parameters that the graph behind a loss reaches, and their gradients as one flat vector.

Everything below `Guide` works on vectors of length D = `Layout.size` and matrices r x D, whose
columns are the elements of the shared parameters in this order. From a loss to such a vector there
are two ways:

    gradients_of -> Layout.flatten      autograd returns the gradients, and they are copied
    written_into                        each gradient is written when autograd has computed it
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from attittud._torch import (
    AccumulateGrad,
    ToCopyBackward,
    as_parts,
    concatenate,
    empty_queue,
    engine_run_backward,
    foreach_add_,
    foreach_copy_,
    foreach_zero_,
    input_metadata,
    kept_graph,
    undoing,
)

Named = Sequence[tuple[str, nn.Parameter]]
_DTYPE = attrgetter("dtype")
_NAME = attrgetter("__name__")
_HALF = {torch.bfloat16, torch.float16}


def copy_each_(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target (of any type). If the sources have several types, there is
    one call for each type, because only then torch is fast.
    """
    if len(set(map(_DTYPE, sources))) == 1:
        foreach_copy_(targets, sources)
        return
    by_type: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        some_targets, some_sources = by_type.setdefault(source.dtype, ([], []))
        some_targets.append(target)
        some_sources.append(source)
    for some_targets, some_sources in by_type.values():
        foreach_copy_(some_targets, some_sources)


class Layout:
    """An ordered set of parameters as consecutive parts of a vector of length `size`.

    Each part keeps its parameter's own strides (channels_last too), so that a gradient is copied in
    the order of memory, and a view of the vector can serve as `.grad` of a fused optimizer.
    """

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.named = list(named)
        _check_one_device(self.named)
        # The following lists have one entry for each parameter, in this order.
        self.names: list[str] = []
        self.parameters: list[nn.Parameter] = []
        self.types: list[torch.dtype] = []
        self.shapes: list[tuple[int, ...]] = []
        self.strides: list[tuple[int, ...]] = []
        self._local_shapes: list[tuple[int, ...]] = []
        """The shapes of this worker's parts: `shapes` unless parameters are sharded."""
        self._sizes: list[int] = []
        """The numbers of elements of this worker's parts."""
        # The next two lists have positions of parts in the lists above.
        self._apart: list[int] = []
        """Parts whose views torch cannot make in one call, because they are empty or not
        contiguous.
        """
        self.reordered: list[int] = []
        """Parts whose elements are not in the order of a contiguous tensor."""
        for i, (name, parameter) in enumerate(self.named):
            tensor = local(parameter)
            size = tensor.numel()
            strides = _dense_strides(tensor)
            contiguous = torch.empty(tensor.shape, device="meta").stride()
            self.names.append(name)
            self.parameters.append(parameter)
            self.types.append(parameter.dtype)
            self.shapes.append(tuple(parameter.shape))
            self.strides.append(strides)
            self._local_shapes.append(tensor.shape)
            self._sizes.append(size)
            if strides != contiguous or size == 0:
                self._apart.append(i)
            if not _same_order(tensor.shape, strides, contiguous):
                self.reordered.append(i)
        self.name_set = frozenset(self.names)
        self.device = torch.device("cpu")
        if self.parameters:
            self.device = self.parameters[0].device
        # Arithmetic is in float32 at least: half-precision gradients are rounded once, at the end.
        self.dtype = torch.float32
        if torch.float64 in self.types:
            self.dtype = torch.float64
        self.alike = set(self.types) <= {self.dtype}
        """Whether all parameters have the type `dtype`."""
        self.numels = list(map(math.prod, self.shapes))
        """The numbers of elements of whole parameters."""
        self.total = sum(self.numels)
        """Columns of V on all workers: `size` unless parameters are sharded."""
        *self._offsets, self.size = accumulate(self._sizes, initial=0)
        self._whole = not any(map(is_sharded, self.parameters))

    def describes(self, named: Named) -> bool:
        """Whether a layout of these parameters would be the same; False for sharded parameters,
        which are not compared.
        """
        if len(named) != len(self.named) or not self._whole:
            return False
        for at, (name, parameter) in enumerate(named):
            same = (
                parameter is self.parameters[at]
                and name == self.names[at]
                and parameter.dtype == self.types[at]
                and parameter.shape == self.shapes[at]
                and parameter.stride() == self.strides[at]
                and parameter.device == self.device
            )
            if not same:
                return False
        return True

    def same(self, other: Layout) -> bool:
        """Whether both layouts have the same parameters in the same order, with the same strides
        and types.

        They may have other names.
        """
        if self is other:
            return True
        return (
            self.shapes == other.shapes
            and self.strides == other.strides
            and self.types == other.types
            and list(map(id, self.parameters)) == list(map(id, other.parameters))
        )

    def empty(self, *rows: int) -> Tensor:
        """Allocate a vector (D) or a matrix (`rows` x D) without initialising it."""
        return torch.empty(*rows, self.size, dtype=self.dtype, device=self.device)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return the parts of `flat` (D, or r x D) as views in the shapes and strides of the
        parameters (with a leading r).
        """
        in_one_call = flat.ndim == 1 and self._whole and flat.stride(0) == 1
        apart: Iterable[int] = self._apart
        if in_one_call:
            # (Contiguous views; the parts in `apart` are replaced below.)
            parts: list[Any] = list(as_parts(flat, cast(list[Tensor], self.parameters)))
        else:
            parts = [None] * len(self.names)
            apart = range(len(parts))
        start = flat.storage_offset()
        lead = flat.shape[:-1]
        steps = flat.stride()[:-1]
        for i in apart:
            shape = (*lead, *self._local_shapes[i])
            strides = (*steps, *self.strides[i])
            parts[i] = flat.as_strided(shape, strides, start + self._offsets[i])
        return parts

    def columns(self, rows: Tensor) -> dict[int, Tensor]:
        """Return each parameter's part of `rows` (r x D) as a view, by the id of the parameter: r x
        elements, or r x shape if its memory has another order than a contiguous tensor's.
        """
        parts = list(rows.split(self._sizes, dim=1))
        # (Parameters that are a single number too: torch adds to a single column in another order
        # than to a vector.)
        for i, local_shape in enumerate(self._local_shapes):
            if i in self.reordered or not local_shape:
                shape = (rows.shape[0], *local_shape)
                strides = (rows.stride(0), *self.strides[i])
                parts[i] = rows.as_strided(shape, strides, rows.storage_offset() + self._offsets[i])
        return dict(zip(map(id, self.parameters), parts, strict=True))

    def by_identity(self, flat: Tensor) -> dict[int, Tensor]:
        """Return the same parts as `views`, by id of the parameter."""
        return dict(zip(map(id, self.parameters), self.views(flat), strict=True))

    @property
    def on_gpu(self) -> bool:
        """Whether whole parameters are on a GPU, where copies of many tensors into views run
        together.
        """
        return self.device.type == "cuda" and self._whole

    def flatten(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Copy gradients, one for each parameter (None counts as zero), into one new vector (D)."""
        # `concatenate` is the fast way, and below is the slow one. Unusual gradients take the slow
        # way: None, sparse tensors and other subclasses, or another type than the vector's. So does
        # a single gradient, because `concatenate` would not copy it.
        kinds = set(map(type, gradients))
        if (
            len(gradients) > 1
            and kinds == {Tensor}
            and set(map(_DTYPE, cast(list[Tensor], gradients))) == {self.dtype}
        ):
            parts = cast(list[Tensor], list(gradients))
            for i in self.reordered:
                # `concatenate` takes elements in the order of a contiguous tensor. If the gradient
                # lies in memory as its part should, its memory is passed as a vector.
                current = parts[i].stride()
                strides = self.strides[i]
                if current != strides and not _same_order(self._local_shapes[i], strides, current):
                    break
                parts[i] = parts[i].as_strided((self._sizes[i],), (1,))
            else:
                with suppress(RuntimeError):  # sparse gradients
                    return concatenate(parts)
        flat = self.empty()
        self.fill_(self.views(flat), gradients)
        return flat

    def flatten_and_view(
        self, gradients: Sequence[Tensor | None]
    ) -> tuple[Tensor, list[Tensor] | None]:
        """Copy gradients, one for each parameter (None counts as zero), into one new vector (D).
        Also returns the views of the vector, if they were needed to make it; else None.
        """
        if not (self.on_gpu and self.alike):
            return self.flatten(gradients), None
        flat = self.empty()
        views = self.views(flat)
        self.fill_(views, gradients)
        return flat, views

    def fill_(self, views: list[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Overwrite the views of a vector, one for each parameter, with gradients (None counts as
        zero).
        """
        sources = [gradient for gradient in gradients if gradient is not None]
        if len(sources) < len(gradients):
            present: list[Tensor] = []
            missing: list[Tensor] = []
            for view, gradient in zip(views, gradients, strict=True):
                if gradient is None:
                    missing.append(view)
                else:
                    present.append(view)
            foreach_zero_(missing)
            views = present
        try:
            if sources:
                copy_each_(views, sources)
        except RuntimeError:
            self._check_dense(gradients)  # a clearer error, if that is the cause
            raise

    def add_(self, flat: Tensor, gradients: Sequence[Tensor | None], *, fresh: bool) -> None:
        """Add gradients (None counts as zero) to `flat`, or overwrite `flat` if it is `fresh`
        memory.
        """
        views = self.views(flat)
        if fresh:
            self.fill_(views, gradients)
            return
        self._check_dense(gradients)
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for view, gradient in zip(views, gradients, strict=True):
            if gradient is not None:
                targets.append(view)
                sources.append(gradient)
        if targets:
            foreach_add_(targets, sources)

    def _check_dense(self, gradients: Sequence[Tensor | None]) -> None:
        """Refuse sparse gradients by the name of their parameter."""
        for name, gradient in zip(self.names, gradients, strict=True):
            if gradient is not None and gradient.layout != torch.strided:
                raise ValueError(sparse_message(name))

    def narrow_(self, flat: Tensor, remaining: Layout) -> Tensor:
        """Keep only the parts of `remaining`, a layout of some of the parameters, in `flat` (D, or r
        x D, contiguous). They are moved to the front in place; returns a view of them.
        """
        # (Of the same size if the dropped parts have no elements here: their shards are on other
        # workers.)
        if remaining.size == self.size:
            return flat
        rows = flat.reshape(-1, self.size)
        memory = rows.view(-1)
        to = 0  # where the next part goes
        for row in range(rows.shape[0]):
            for name, offset, n in zip(self.names, self._offsets, self._sizes, strict=True):
                if name in remaining.name_set:
                    source = row * self.size + offset
                    # Part by part, since a part's new position may overlap its old one.
                    if to != source:
                        memory[to : to + n] = memory[source : source + n].clone()
                    to += n
        return memory[:to].view(*flat.shape[:-1], remaining.size)


def _same_order(shape: Sequence[int], strides: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two tensors of one shape, with these strides, have their elements in the same order
    in memory. The stride of a dimension of size 1 is ignored.
    """
    if strides == others:
        return True
    return all(a == b or n == 1 for n, a, b in zip(shape, strides, others, strict=True))


def _dense_strides(parameter: Tensor) -> tuple[int, ...]:
    """Return the parameter's strides if they fill memory without holes, else the strides of a
    contiguous tensor.
    """
    return tuple(
        torch.empty_like(parameter, device="meta", memory_format=torch.preserve_format).stride()
    )


def _check_one_device(named: Named) -> None:
    """Refuse parameters that cannot be parts of one vector of real numbers: on two devices, or of
    another type.
    """
    for name, parameter in named:
        first_name, first = named[0]
        if parameter.device != first.device:
            raise ValueError(
                f"shared parameters are on two devices: {first_name!r} on {first.device} and {name!r} on "
                f"{parameter.device}; move the model to one device, or leave one side out with parameters="
            )
        if not parameter.is_floating_point():
            raise TypeError(
                f"shared parameter {name!r} is {parameter.dtype}, but only real floating-point parameters can be "
                "decomposed; leave it out with parameters="
            )


def sparse_message(name: str) -> str:
    """Make the error message for a parameter whose gradient is sparse."""
    return (
        f"parameter {name!r} has a sparse gradient, which cannot be projected; build its embedding with sparse=False, or "
        "leave it out with parameters="
    )


def is_sharded(tensor: Tensor) -> bool:
    """Whether a worker holds only a shard (a DTensor). DTensor is not imported, because that takes
    as long as torch itself.
    """
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this worker holds: its shard, or the whole tensor."""
    if is_sharded(tensor):
        tensor = cast(Any, tensor.detach()).to_local()
    return tensor


def as_gradient(gradient: Tensor, parameter: nn.Parameter) -> Tensor:
    """Convert a gradient of this worker's part of a parameter to the form of the parameter's
    `.grad`.
    """
    if not is_sharded(parameter):
        return gradient
    from torch.distributed.tensor import DTensor

    like = cast(DTensor, parameter)
    return DTensor.from_local(
        gradient,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


WAITING = 1 << 22
"""How many elements of gradients may wait to be written together, which saves launches: 16 MB, at
most a quarter of all.
"""


class Writing:
    """Writes the gradients of a layout's parameters into a vector `to` (D), while a backward pass
    runs. The number of a parameter is its position in the layout.
    """

    def __init__(self, layout: Layout, to: Tensor) -> None:
        self.layout = layout
        self.views = layout.views(to)
        self.most = min(WAITING, layout.size // 4)
        """How many elements may wait before they are written."""
        self.hooked = [p.requires_grad for p in layout.parameters]
        """For each parameter, whether a hook takes its gradient."""
        # model.half() may have been called since the layout was made
        dtypes = {p.dtype for p in layout.parameters}
        # One zero of each type, which hooks expand to the shape of a parameter.
        self._zeros = {
            dtype: torch.zeros((), dtype=dtype, device=layout.device) for dtype in dtypes
        }
        self._waiting: dict[int, Tensor] = {}
        """Gradients that are not written yet, by the number of their parameter."""
        self._size = 0
        """The number of elements of these gradients."""
        self._arrived: set[int] = set()
        """The numbers of the parameters whose gradients are written."""
        self.closed = False
        """Whether the hooks leave later gradients to autograd."""

    def hook(self, at: int) -> _Take:
        """Make a hook that takes the gradient of parameter number `at` and returns zeros without
        memory to autograd.
        """
        parameter = self.layout.parameters[at]
        return _Take(self, at, self._zeros[parameter.dtype].expand_as(parameter))

    def close(self) -> None:
        """Leave later gradients to autograd, and remove the hooks."""
        self.closed = True
        remove_hooks(self.layout.parameters)

    def keep(self, gradients: Sequence[Tensor | None]) -> None:
        """Take the gradients that autograd returned for parameters without a hook."""
        for at, (gradient, hooked) in enumerate(zip(gradients, self.hooked, strict=True)):
            if gradient is not None and not hooked:
                self.take(at, gradient)

    def take(self, at: int, gradient: Tensor) -> None:
        """Write the gradient of parameter number `at`, now or together with later ones."""
        if gradient.layout != torch.strided:
            raise ValueError(sparse_message(self.layout.names[at]))
        self._waiting[at] = gradient
        self._size += gradient.numel()
        if self._size > self.most:
            self.write()

    def write(self) -> None:
        """Write the gradients that wait."""
        if self._waiting:
            targets = [self.views[at] for at in self._waiting]
            foreach_copy_(targets, list(self._waiting.values()))
            self._arrived.update(self._waiting)
            self._waiting = {}
            self._size = 0

    def finish(self) -> None:
        """Write the gradients that still wait, and zeros for parameters without a gradient."""
        self.write()
        missing = [view for at, view in enumerate(self.views) if at not in self._arrived]
        if missing:
            foreach_zero_(missing)


class _Take:
    """A hook that hands the gradient of parameter number `at` to a `Writing`, and `zeros` to
    autograd.
    """

    def __init__(self, writing: Writing, at: int, zeros: Tensor) -> None:
        self.writing = writing
        self.at = at
        self.zeros = zeros

    def __call__(self, gradient: Tensor | None) -> Tensor | None:
        # A custom autograd.Function may return None.
        if gradient is None or self.writing.closed:
            return None
        self.writing.take(self.at, gradient)
        return self.zeros


@contextmanager
def written_into(layout: Layout, to: Tensor, *, returned: bool = False) -> Iterator[Writing]:
    """Write the gradients of the layout's parameters to `to` (D) when a backward pass in the block
    computes them, and zeros for parameters without a gradient. For the written gradients autograd
    returns zeros without memory.

    A tensor hook gets each gradient when it is complete and before `torch.autograd.grad` returns
    it, so no gradient is in memory twice. `returned`: autograd returns the gradients of small
    parameters, which saves their hooks; the caller must pass them to `keep`.
    """
    writing = Writing(layout, to)
    if returned:
        # Small enough that all of them together stay below a quarter of what may wait.
        small = writing.most // (4 * len(layout.names))
        writing.hooked = [view.numel() > small for view in writing.views]
    with undoing(writing.close):
        for at, p in enumerate(layout.parameters):
            if writing.hooked[at] and p.requires_grad:
                p.register_hook(writing.hook(at))
        yield writing
        writing.finish()


def remove_hooks(parameters: Iterable[Tensor]) -> None:
    """Remove the hooks of `written_into` from parameters."""
    for p in parameters:
        hooks = p._backward_hooks or {}
        for key in [key for key, hook in hooks.items() if isinstance(hook, _Take)]:
            del hooks[key]


@dataclass(frozen=True)
class Share:
    """This worker's part of the examples behind one loss."""

    first: int | Tensor = 0
    """The number of its first example, counted over all workers."""
    total: int | Tensor | None = None
    """How many examples all workers have (on the device); None for a single worker."""
    factor: int = 1
    """Undoes the averaging of a reduction, which divides by the number of workers."""

    def weights(self, losses: Tensor) -> Tensor:
        """Return the weight of each loss, in the shape of `losses`, in the mean over the examples of
        all workers.

        A backward pass starts from these weights. Computing the mean itself would take two more
        kernels.
        """
        if self.total is None:
            return torch.full_like(losses, 1 / max(1, losses.numel()))
        assert isinstance(self.total, Tensor)
        return (self.factor / self.total.to(losses.dtype)).expand_as(losses)

    def count(self, losses: Tensor) -> int | Tensor:
        """Return the number of examples of all workers."""
        if self.total is None:
            return losses.shape[0]
        return self.total


EVERYTHING = Share()


in_this_thread = partial(torch.autograd.set_multithreading_enabled, False)
"""A context for backward passes, which then run in the thread that calls them.

For a GPU torch would hand a pass to another thread. That helps models on several devices, but the
parameters that a guide decomposes are on one device. There, changing threads takes up to a tenth of
an eager pass.
"""


def run_backward(*args: Any, **options: Any) -> tuple[Tensor | None, ...]:
    """Run torch's engine as torch.autograd.grad does, without its check of every parameter, and in
    this thread. After an error, free the graph that the pass leaves behind.
    """
    with in_this_thread():
        try:
            gradients: tuple[Tensor | None, ...] = engine_run_backward(*args, **options)
        except BaseException:
            empty_queue()
            raise
        return gradients


def gradients_of(
    losses: Tensor,
    weights: Tensor,
    parameters: Sequence[Tensor],
    *,
    retain_graph: bool,
    into: Layout | None = None,
) -> Sequence[Tensor | None]:
    """Return the gradient of the weighted sum of losses for each parameter; None for a parameter
    that is not reached. `weights` has the shape of `losses`. Without `retain_graph` the graph is
    freed.

    `into`: the caller copies gradients into a new vector of this layout, so they may still be in
        half precision.
    """
    if not parameters:
        return ()
    ends: Sequence[Tensor | GradientEdge] = parameters
    if into is not None:
        ends = unconverted(losses, into, parameters)
    keeping: AbstractContextManager[None] = nullcontext()
    if retain_graph:
        keeping = kept_graph()
    with keeping:
        return run_backward(
            (losses,), (weights,), retain_graph, False, tuple(ends), True, accumulate_grad=False
        )


@dataclass(frozen=True)
class LossGraph:
    """What is behind a loss: the nodes of its graph, and the leaves where the graph ends."""

    nodes: set[Any]
    """All nodes but the leaves."""
    leaves: set[int]
    """Parameters, by id."""
    inputs: list[Tensor]
    """Leaves that are no parameters: other tensors that require a gradient."""
    several: set[Any]
    """Nodes that more than one edge leads to."""


def converts(graph: LossGraph) -> bool:
    """Whether leaves of a graph are converted to half precision, as parameters are under
    autocast.
    """
    return bool(_conversions(graph.nodes, graph.several))


def walk(loss: Tensor) -> LossGraph:
    """Return the graph behind `loss`; raises an error where autograd.grad would silently return
    nothing.
    """
    every_node, several = _nodes(loss)
    nodes = set(every_node)
    leaves = set[int]()
    if loss.is_leaf:
        leaves.add(id(loss))
    inputs: list[Tensor] = []
    for node in every_node:
        if node.next_functions:
            continue
        variable = getattr(node, "variable", None)
        if variable is None:
            continue
        nodes.discard(node)
        if isinstance(variable, nn.Parameter):
            leaves.add(id(variable))
        else:
            inputs.append(variable)
    if "CheckpointFunctionBackward" in map(_NAME, set(map(type, nodes))):
        raise RuntimeError(
            "a module under reentrant activation checkpointing hides its parameters from torch.autograd.grad; pass "
            "use_reentrant=False to torch.utils.checkpoint.checkpoint (Hugging Face: "
            "gradient_checkpointing_kwargs={'use_reentrant': False})"
        )
    return LossGraph(nodes, leaves, inputs, several)


def _nodes(loss: Tensor) -> tuple[list[Any], set[Any]]:
    """Return all nodes behind a loss, leaves too, and those that more than one edge leads to."""
    if loss.grad_fn is None:
        return [], set()
    nodes: list[Any] = [loss.grad_fn]
    visited = set[Any](nodes)
    several = set[Any]()
    for node in nodes:  # the list grows meanwhile
        for later, _ in node.next_functions:
            if later in visited:
                several.add(later)
            elif later is not None:
                visited.add(later)
                nodes.append(later)
    return nodes, several


def _conversions(nodes: Iterable[Any], several: set[Any]) -> dict[int, tuple[Tensor, Any]]:
    """Return the leaves that are converted to half precision and used in no other form, each with
    the node that converts it, by the id of the leaf. Arguments as from `_nodes`.
    """
    conversions = {}
    for node in nodes:
        if type(node) is ToCopyBackward:
            ((end, _),) = node.next_functions
            if type(end) is AccumulateGrad and end not in several:
                # The same kind of node stands for a copy to another device or memory format.
                (arriving,) = input_metadata(node)
                leaf = end.variable
                if arriving.dtype in _HALF and arriving.device == leaf.device:
                    conversions[id(leaf)] = leaf, node
    return conversions


def unconverted(
    loss: Tensor, layout: Layout, parameters: Sequence[Tensor]
) -> list[Tensor | GradientEdge]:
    """Replace parameters of a layout by the edges of the loss's graph at which their gradients
    arrive unconverted.

    Autocast converts parameters to half precision, so a backward pass ends with a kernel for each
    parameter that converts its gradient back. The copy into a flat vector converts as well, to the
    same bits, so these kernels are left out. (So are hooks on the converting nodes themselves.)
    """
    ids = set(map(id, layout.parameters))
    # Two kinds of parameters keep their conversion. A flat vector of another type than the parameter
    # would not be rounded like its gradient. And hooks of the parameter must see the gradient.
    edges = {}
    for number, (leaf, node) in _conversions(*_nodes(loss)).items():
        if number in ids and leaf.dtype == layout.dtype and not leaf._backward_hooks:
            edges[number] = GradientEdge(node, 0)
    return [edges.get(id(p), p) for p in parameters]
