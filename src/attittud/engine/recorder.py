"""Records the forward pass: each call of a torch function that combines a parameter with data.

The engine `hooks` opens a recorder around a forward pass and every use of its graph. Functions are
recorded rather than modules, because many uses of a parameter do not go through a module of its
own: raw parameters, tied weights in `F.linear(x, embedding.weight)`, or `nn.MultiheadAttention`,
which never calls its output projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from attittud._torch import DisableTorchFunction, add_hook, packs_saved_tensors
from attittud.engine.attention import MULTI_HEAD_ATTENTION, arguments_of, attend
from attittud.engine.base import UnsupportedError
from attittud.engine.rules import EXPANSION, Function, Rule, rule_for

# These functions repeat a parameter for every example.
_EXPANSIONS: set[Function] = {Tensor.expand, Tensor.expand_as, Tensor.repeat}
# Only type, device or shape of these functions' other arguments matter.
_FIRST_ONLY: set[Function] = {
    *(Tensor.to, Tensor.type_as, Tensor.view_as, Tensor.reshape_as, Tensor.expand_as)
}
# Autocast runs these functions in its own type.
_CAST: set[Function] = {F.linear, F.conv1d, F.conv2d, F.conv3d}

_IN_PLACE_OPERATORS = {
    *("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")
}

# Functions that read an attribute of a tensor.
_GETTER = type(getattr(Tensor.shape, "__get__"))  # noqa: B009

OnCall = Callable[["Call", Tensor], None]
Data = Callable[[], dict[str, Tensor]]


class _Save(torch.autograd.Function):
    """A node outside of the loss's graph that saves tensors in autograd.

    So activation checkpointing recomputes these tensors, and offloading moves them.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)


_save: Function = _Save.apply


def _packed(tensors: dict[str, Tensor]) -> Data:
    """Save tensors in autograd, whose hooks may pack them; return a function that unpacks them."""
    names = list(tensors)
    # The result itself is kept, because up to torch 2.11 its node dies with it.
    result = _save(torch.zeros((), requires_grad=True), *tensors.values())
    return lambda: dict(zip(names, result.grad_fn.saved_tensors, strict=True))


def _unchanged(tensors: dict[str, Tensor]) -> Data:
    """Return a function that returns these tensors, unless they have been overwritten by then."""
    versions = [tensor._version for tensor in tensors.values()]

    def data() -> dict[str, Tensor]:
        if [tensor._version for tensor in tensors.values()] != versions:
            raise UnsupportedError(
                "an argument was overwritten in place, and its old value is needed for the "
                "gradients"
            )
        return tensors

    return data


@dataclass(eq=False, slots=True)
class Call:
    """One call of a function that combines parameters with data."""

    name: str
    """The function's name."""
    rule: Rule
    arguments: dict[str, Any]
    """The arguments by name, with None for data."""
    combined: list[Tensor]
    """The arguments that are parameters, or tensors computed from parameters alone."""
    data: Data
    """Returns the data among the arguments by name. Under activation checkpointing it may run a
    part of the model again.
    """
    dim: int
    """The dimension of the examples: 0, or 1 inside of `nn.MultiheadAttention`."""
    shape: torch.Size
    dtype: torch.dtype
    edge: GradientEdge
    """The result's place in the graph. The result itself is not held."""


@dataclass(slots=True)
class Refusal:
    """A call for which there is no rule."""

    combined: list[Tensor]
    function: str


@dataclass
class SharedTensors:
    """Tensors that all examples share: parameters, buffers, and what is computed from them alone.

    They are kept, so that no other tensor gets their id.
    """

    tensors: dict[int, Tensor] = field(default_factory=dict)
    sources: dict[int, list[Tensor]] = field(default_factory=dict)
    """By id of a tensor with a gradient: the trainable parameters that it is computed from."""

    def add(self, result: Any, arguments: Iterable[Tensor]) -> None:
        """Note the result of a function all of whose arguments are shared."""
        sources: dict[int, Tensor] = {}
        for tensor in arguments:
            for parameter in self.sources.get(id(tensor), ()):
                sources[id(parameter)] = parameter
        for tensor in tensors_in((result,)):
            self.tensors.setdefault(id(tensor), tensor)
            if tensor.requires_grad and sources:
                self.sources.setdefault(id(tensor), list(sources.values()))

    def forget(self, tensor: Tensor) -> None:
        """Note that a tensor was overwritten with data. A parameter stays a parameter."""
        if isinstance(tensor, nn.Parameter):
            return
        self.tensors.pop(id(tensor), None)
        self.sources.pop(id(tensor), None)


def shared_tensors(modules: Iterable[nn.Module]) -> SharedTensors:
    """Return the parameters and buffers of a model, given all its modules."""
    shared = SharedTensors()
    for module in modules:
        for tensor in (*module._buffers.values(), *module._parameters.values()):
            if tensor is not None:
                shared.tensors[id(tensor)] = tensor
                if tensor.requires_grad and isinstance(tensor, nn.Parameter):
                    shared.sources[id(tensor)] = [tensor]
    return shared


class Recorder(TorchFunctionMode):
    """A mode for a forward pass and later uses of its graph, which may run parts of it again."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.refusals: list[Refusal] = []
        self._shared = shared_tensors(modules)
        self._dim = 0  # the dimension of the examples
        self._forward = True
        self._repeats = False
        """Whether parts of the forward pass run again later, as under activation checkpointing."""
        self._on_call: OnCall | None = None
        self._removals: list[Callable[[], object]] = []

    def sources(self, tensor: Tensor) -> list[Tensor]:
        """Return the trainable parameters behind a tensor; a parameter is its own source."""
        return self._shared.sources[id(tensor)]

    def end_forward(self) -> None:
        """Note that the forward pass is over.

        Later calls repeat a part of it, for activation checkpointing.
        """
        self._forward = False

    @contextmanager
    def telling(self, on_call: OnCall) -> Iterator[None]:
        """A context for a backward pass: `on_call` gets calls with gradients of their results."""
        self._on_call = on_call
        try:
            yield
        finally:
            self._on_call = None

    def forget(self) -> None:
        """Free the calls, and remove the hooks of their results."""
        for remove in self._removals:
            remove()
        self.calls = []
        self.refusals = []
        self._removals = []

    # ---------------------------------------------------------------------------------------- calls

    def __torch_function__(
        self,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a function, and record the call if it combines parameters with data.

        Results of shared tensors alone are shared too; other results depend on the examples. A
        parameter that is repeated for every example is recorded as well.
        """
        kwargs = kwargs or {}
        if not (self._forward or self._repeats):
            return func(*args, **kwargs)
        if type(func) is _GETTER:
            attribute = func(*args)
            if not isinstance(attribute, Tensor):  # a shape, a type
                return attribute
        if func is MULTI_HEAD_ATTENTION and (arguments := arguments_of(args, kwargs)) is not None:
            return self._attention(arguments)
        if func in _FIRST_ONLY:
            tensors = tensors_in(args[:1])
        else:
            tensors = tensors_in((*args, *kwargs.values()))
        shared = [tensor for tensor in tensors if id(tensor) in self._shared.tensors]
        combined = [tensor for tensor in shared if id(tensor) in self._shared.sources]
        # The index of an embedding counts as data even if it is a buffer, unless it holds positions.
        looks_up = func is F.embedding and not _same_for_all(tensors[0])
        meets_data = looks_up or len(shared) < len(tensors)
        if combined and meets_data and torch.is_grad_enabled():
            return self._combine(func, args, kwargs, combined)
        result = func(*args, **kwargs)
        if meets_data:
            if _in_place(func) and isinstance(args[0], Tensor):
                self._shared.forget(args[0])
        elif combined and func in _EXPANSIONS and _grew(combined[0], result):
            self._note(func, EXPANSION, {"input": combined[0]}, combined, _unchanged({}), result)
        elif shared or func is torch.arange:
            self._shared.add(result, shared)
        return result

    def _attention(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
        """Run attention written out, inside of which the second dimension holds the examples."""
        dim_before = self._dim
        self._dim = 1
        try:
            with self:
                return attend(arguments)
        finally:
            self._dim = dim_before

    def _combine(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        combined: list[Tensor],
    ) -> Any:
        """Run a function of parameters and data, and record the call; without a rule for it, a
        refusal.
        """
        if function in _CAST and args:
            args = (_cast(args[0]), *args[1:])
        shared_ids = self._shared.tensors.keys()
        data = {id(tensor) for tensor in tensors_in((*args, *kwargs.values()))} - shared_ids
        if function is F.embedding:
            data.add(id(args[0]))
        match = rule_for(function, args, kwargs, data)
        if match is None:
            result = function(*args, **kwargs)
            if any(tensor.requires_grad for tensor in tensors_in((result,))) or _in_place(function):
                self.refusals.append(Refusal(combined, _name(function)))
            return result
        rule, arguments = match
        needed: dict[str, Tensor] = {}
        for name, value in arguments.items():
            if id(value) in data:
                arguments[name] = None
                if name in rule.needed:
                    needed[name] = value
        # The data are kept before the call, because the call itself may overwrite them.
        if needed and packs_saved_tensors():
            self._repeats = True
            later = _packed(needed)
        else:
            later = _unchanged(needed)
        result = function(*args, **kwargs)
        if _in_place(function):
            self._shared.forget(result)
        self._note(function, rule, arguments, combined, later, result)
        return result

    def _note(
        self,
        function: Function,
        rule: Rule,
        arguments: dict[str, Any],
        combined: list[Tensor],
        data: Data,
        result: Tensor,
    ) -> None:
        """Record a call, and hook its result, which tells the backward pass of its gradient.

        The hook is added now, because the result may be overwritten in place later.
        """
        if not self._forward or not result.requires_grad:
            return
        whole = _whole(result)
        call = Call(
            _name(function),
            rule,
            arguments,
            combined,
            data,
            self._dim,
            result.shape,
            result.dtype,
            get_gradient_edge(whole),
        )
        self.calls.append(call)

        def arrived(gradient: Tensor) -> None:
            if self._on_call is not None:
                with DisableTorchFunction():
                    gradient = gradient.reshape(call.shape)
                self._on_call(call, gradient)

        self._removals.append(add_hook(whole, arrived))


@contextmanager
def recording(modules: Iterable[nn.Module]) -> Iterator[Recorder]:
    """Record the forward pass of a model with these modules. Keep the block open until the graph
    has been used.

    Compiled modules run eagerly inside: otherwise their calls would be invisible, and hooks would
    not fire.
    """
    recorder = Recorder(modules)
    try:
        with torch.compiler.set_stance("force_eager"), recorder:
            yield recorder
    finally:
        recorder.forget()


def tensors_in(entries: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among arguments or results, including those in lists and dicts."""
    tensors: list[Tensor] = []
    for entry in entries:
        if isinstance(entry, Tensor):
            tensors.append(entry)
        elif isinstance(entry, (tuple, list)):
            tensors += tensors_in(entry)
        elif isinstance(entry, dict):
            tensors += tensors_in(entry.values())
    return tensors


def _name(function: Function) -> str:
    """A function's name for messages."""
    return str(getattr(function, "__name__", function))


def _same_for_all(index: Tensor) -> bool:
    """Whether an index into a table has no dimension for the examples.

    (Positions, which models make with `arange`, or with a buffer of shape 1 x T.)
    """
    return index.ndim < 2 or index.shape[0] == 1


def _cast(x: Any) -> Any:
    """Cast an input as autocast would.

    So the tensor that autograd saves is the same tensor that is kept here.
    """
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        return x
    if not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def _grew(before: Tensor, after: Tensor) -> bool:
    """Whether a tensor was repeated along the first dimension."""
    return after.shape[0] > 1 and (after.ndim > before.ndim or after.shape[0] != before.shape[0])


@cache
def _in_place(function: Function) -> bool:
    """Whether a function overwrites its first argument."""
    name = getattr(function, "__name__", "")
    if name.startswith("__"):
        return name in _IN_PLACE_OPERATORS
    return name.endswith("_")


def _whole(x: Tensor) -> Tensor:
    """Return the base tensor if a view shows all of it.

    An in-place operation on the view would remove the view from the graph.
    """
    base = x._base
    if base is None or base.grad_fn is None or base.numel() != x.numel():
        return x
    if not (base.is_contiguous() and x.is_contiguous()):
        return x
    return base
