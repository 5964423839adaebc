"""Records the forward pass: every function call that combines a parameter with data, and what its gradient needs.

It records functions rather than modules, because many uses of a parameter do not go through a module: raw parameters, tied
weights in `F.linear(x, embedding.weight)`, or `nn.MultiheadAttention`, which never calls its own output projection.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.overrides import TorchFunctionMode

from attittud._torch import DisableTorchFunction, add_hook, packs_saved_tensors, tree_flatten, tree_unflatten
from attittud.autograd.forward import all_modules
from attittud.engine.base import UnsupportedError

Function = Callable[..., Any]
Gradients = tuple[Tensor | None, ...]

# Examples are in the first dimension, channels in the second.
LEADING: set[Function] = {
    *(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    *(F.group_norm, F.batch_norm, F.instance_norm),
}
# These functions repeat a parameter for every example.
SPREADING: set[Function] = {
    *(Tensor.expand, Tensor.expand_as, Tensor.repeat, Tensor.broadcast_to, torch.broadcast_to, torch.tile, Tensor.tile)
}
# The gradients of these functions and of `SPREADING` need no data, so no tensors have to be kept for them.
ADDITIONS: set[Function] = {*(torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)}


class _Keep(torch.autograd.Function):
    """A node outside of the loss's graph that saves tensors in autograd.

    So activation checkpointing recomputes these tensors, and offloading moves them.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.new_empty(0)


_keep: Function = _Keep.apply


class Call:
    """One function call that combines parameters with data."""

    def __init__(self, func: Function, args: Any, kwargs: Any, met: list[Tensor], kept: set[int]) -> None:
        self.func = func
        self.met = met  # the arguments that are parameters, or derived from parameters alone
        self.shape = torch.Size()  # shape of its first output that has a gradient
        self.dtype: torch.dtype | None = None  # type of that output
        self.in_attention = False  # part of `nn.MultiheadAttention`, where positions always come before examples
        self.outputs: list[int] = []  # which of its outputs have a gradient
        self.edges: list[GradientEdge] = []
        # Most calls have their tensors at the top level, so flattening nested arguments, which is slow, is not needed.
        self._names = tuple(kwargs)
        self._flat: list[Any] = [*args, *kwargs.values()]
        self._spec: Any = None
        self.positional = len(args)  # how many keys of `shapes` belong to positional arguments
        for value in self._flat:
            if isinstance(value, (tuple, list, dict)) and tensors_in((value,)):
                self._flat, self._spec = tree_flatten((args, kwargs))
                self.positional = len(tree_flatten(args)[0])
                break
        # The shape of each data tensor, by its number among the arguments.
        self.shapes: dict[int, tuple[int, ...]] = {}
        for at, value in enumerate(self._flat):
            if id(value) in kept:
                self.shapes[at] = tuple(value.shape)
        self._kept: Any = None
        self._versions: list[int] = []

    def shape_of(self, at: int | None) -> tuple[int, ...]:
        """Return the shape of the result (None) or of a data tensor among the arguments."""
        return tuple(self.shape) if at is None else self.shapes[at]

    def described(self, names: dict[int, str]) -> tuple[Any, ...]:
        """What two forward passes must have in common for this to be the same call. `names`: the parameters' names, by id."""
        met = [names.get(id(t)) for t in self.met]
        return self.func, met, self.shape, self.shapes, self.positional, self.in_attention, self.outputs

    @property
    def name(self) -> str:
        return str(getattr(self.func, "__name__", self.func))

    def keep(self, anchor: Tensor, packed: bool) -> None:
        """Keep the data among the arguments. If hooks pack the tensors that autograd saves, they pack this data too."""
        if packed and self.shapes:
            # The result itself is kept, because up to torch 2.11 its node dies with it.
            self._kept = _keep(anchor, *(self._flat[at] for at in self.shapes))
            for at in self.shapes:
                self._flat[at] = None
        else:
            for at in self.shapes:
                self._versions.append(self._flat[at]._version)

    def arguments(self) -> tuple[Any, Any, dict[int, int]]:
        """Return the original positional and keyword arguments, and the data's ids with their keys in `shapes`."""
        flat, data = self._flat, dict[int, int]()
        if self._kept is not None:
            flat = list(flat)
            for at, tensor in zip(self.shapes, self._kept.grad_fn.saved_tensors, strict=True):
                flat[at] = tensor
                data[id(tensor)] = at
        else:
            for at, version in zip(self.shapes, self._versions, strict=True):
                if flat[at]._version != version:
                    raise UnsupportedError(
                        "an argument was overwritten in place, and its old value is needed for the gradients"
                    )
                data[id(flat[at])] = at
        if self._spec is not None:
            return *tree_unflatten(flat, self._spec), data
        if not self._names:
            return flat, {}, data
        count = self.positional
        return flat[:count], dict(zip(self._names, flat[count:], strict=True)), data


def tensors_in(entries: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among arguments or results, including those in lists and dicts."""
    found: list[Tensor] = []
    for entry in entries:
        if isinstance(entry, Tensor):
            found.append(entry)
        elif isinstance(entry, (tuple, list, dict)):
            found += tensors_in(entry.values() if isinstance(entry, dict) else entry)
    return found


# ---------------------------------------------------------------------------------------------------- the recorder

# The results of these functions depend on shapes only.
_CONSTANT: set[Function] = {
    *(torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.eye, torch.linspace),
    *(torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like),
    *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty),
}
# Frequent calls whose results are not tensors.
_QUESTIONS: set[Function] = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "is_cuda")),
    *(getattr(Tensor, name).__get__ for name in ("requires_grad", "grad_fn", "is_leaf")),
    *(Tensor.size, Tensor.stride, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.is_contiguous),
}
# Only type, device or shape of these functions' other arguments matter.
_FIRST_ONLY: set[Function] = {Tensor.to, Tensor.type_as, Tensor.view_as, Tensor.reshape_as, Tensor.expand_as}
# Autocast runs these functions in its own type.
_CAST: set[Function] = {F.linear, F.conv1d, F.conv2d, F.conv3d}


def _opened(function: Any) -> Function:
    """Return a copy of a Python function of torch whose body always runs: torch would hand the whole call to the mode instead."""
    scope = {**function.__globals__, "has_torch_function": lambda *_: False}
    copy = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_ATTENTION = F.multi_head_attention_forward
# Attention is opened so that its projections are recorded, autograd.grad so that recomputations by checkpointing are.
_OPENED: dict[Function, Function] = {f: _opened(f) for f in (_ATTENTION, torch.autograd.grad)}


class Recorder(TorchFunctionMode):
    """A mode that is active during the forward pass, and during later passes that may run parts of it again.

    It is not active at other times, because every call goes through Python while a mode is active.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.derived: dict[int, Tensor] = {}
        """Tensors computed from parameters and constants alone: position embeddings, a normalised weight."""
        self._on_call: Callable[[Call, Gradients], None] | None = None
        # Tensors that do not depend on any example's data. They are kept, so that no other tensor gets their id.
        self._constant: dict[int, Tensor] = {}
        self._parameters: dict[int, Tensor] = {}
        for module in all_modules(model):
            if module._buffers:
                for buffer in module._buffers.values():
                    if buffer is not None:
                        self._constant[id(buffer)] = buffer
            if module._parameters:
                for parameter in module._parameters.values():
                    if parameter is not None:
                        self._parameters[id(parameter)] = parameter
        self._constant |= self._parameters
        self._parameters = {key: p for key, p in self._parameters.items() if p.requires_grad}
        self._anchor = torch.zeros((), requires_grad=True)
        self._recording = True
        self._active = False
        self._attention = False
        self._handles: list[Callable[[], object]] = []  # each removes a hook
        self.forward = ExitStack()  # a closed recorder records nothing until a backward pass
        self._repeats = False
        """Whether saved tensors are packed away, such as by activation checkpointing, which computes them again."""

    def begin(self) -> None:
        """Begin the forward pass. This is not a context manager, because the pass ends before its graph is used."""
        self.forward.enter_context(self._eager())

    def finish(self) -> None:
        """End the forward pass. Later calls are repetitions by activation checkpointing."""
        self._recording = False
        if not self._repeats:
            self.forward.close()

    @contextmanager
    def active(self) -> Iterator[None]:
        """A context for a backward pass."""
        if self._active or not self._repeats:
            yield
            return
        known = dict(self._constant)
        with self._eager():
            yield
        self._constant = known  # drop the calls that recomputations added

    @contextmanager
    def telling(self, on_call: Callable[[Call, Gradients], None]) -> Iterator[None]:
        """A context for a backward pass. `on_call` gets every call with the gradients that arrive at its outputs."""
        self._on_call = on_call
        try:
            yield
        finally:
            self._on_call = None

    @contextmanager
    def _eager(self) -> Iterator[None]:
        """Run compiled modules eagerly inside: otherwise their calls would be invisible, and hooks would not fire."""
        self._active = True
        try:
            with torch.compiler.set_stance("force_eager"), self:
                yield
        finally:
            self._active = False

    def release(self) -> None:
        """Close before the graph is used for the last time, without calling a hook for every output there.

        (Not where parts of the model run again in that pass: they must run in the same way as in the forward pass.)
        """
        if not self._repeats:
            self.close()

    def close(self) -> None:
        self.forward.close()
        for remove in self._handles:
            remove()
        self.calls, self.derived, self._constant, self._handles = [], {}, {}, []

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _QUESTIONS:
            return func(*args, **kwargs)
        if func in _OPENED:
            before, self._attention = self._attention, func is _ATTENTION
            try:
                with self:
                    return _OPENED[func](*args, **kwargs)
            finally:
                self._attention = before
        entries = args[:1] if func in _FIRST_ONLY else (*args, *kwargs.values()) if kwargs else args
        data, constant = list[Tensor](), list[Tensor]()
        for t in tensors_in(entries):
            (constant if id(t) in self._constant else data).append(t)
        if constant:  # parameters and what is derived from them are constants
            met = [t for t in constant if id(t) in self._parameters or id(t) in self.derived]
            if met and (data or func in SPREADING) and torch.is_grad_enabled():
                return self._call(func, args, kwargs, met, data)
        result = func(*args, **kwargs)
        if _in_place(func):
            self._overwritten(args[0], constant=not data)
        elif (constant and not data) or func in _CONSTANT or (func is torch.tensor and result.ndim == 0):
            self._derive(result)
        return result

    def _overwritten(self, target: Any, *, constant: bool) -> None:
        if not isinstance(target, Tensor):
            return
        if constant:
            self._derive(target)
        else:
            self._constant.pop(id(target), None)
            self.derived.pop(id(target), None)

    def _derive(self, result: Any) -> None:
        for tensor in tensors_in((result,)):
            if id(tensor) not in self._constant:
                self._constant[id(tensor)] = tensor
            if tensor.requires_grad and id(tensor) not in self._parameters:
                self.derived[id(tensor)] = tensor

    def _call(self, func: Function, args: Any, kwargs: Any, met: list[Tensor], data: list[Tensor]) -> Any:
        if func in _CAST and args:
            args, data = _cast(args, data)
        packed = packs_saved_tensors()
        self._repeats = self._repeats or packed
        in_place = _in_place(func)
        plain = func in ADDITIONS and "alpha" not in kwargs
        needed = set() if plain or func in SPREADING else set(map(id, data))
        call = Call(func, args, kwargs, met, needed)
        if in_place:
            # Versions are taken before the call, so a later overwriting is noticed when the arguments are needed.
            call.keep(self._anchor, packed)
        result = func(*args, **kwargs)
        if func is torch.lstm_cell:
            # The first output is computed from the second, so the second would get the gradients of both.
            result = tuple(output.clone() for output in result)
        if in_place:
            self._overwritten(args[0], constant=False)
        results = (
            [result] if type(result) is Tensor else tensors_in((args[0] if func is Tensor.__setitem__ else result,))
        )
        outputs = list[Tensor]()
        for at, t in enumerate(results):
            if t.requires_grad:
                call.outputs.append(at)
                outputs.append(t)
        if not outputs:
            return result
        if func in SPREADING and not _grew(met[0], outputs[0], dim=1 if self._attention else 0):
            self._derive(result)
            return result
        if not in_place:
            call.keep(self._anchor, packed)
        if self._recording:
            call.shape, call.dtype = outputs[0].shape, outputs[0].dtype
            call.in_attention = self._attention
            self._watch(call, outputs)
        return result

    def _watch(self, call: Call, outputs: list[Tensor]) -> None:
        """Register hooks for the gradients of the outputs now, because the outputs may be overwritten in place later."""
        shapes: list[torch.Size | None] = []
        for at, shown in enumerate(outputs):
            whole = shown if call.func in SPREADING else _whole(shown)
            shapes.append(None if whole is shown else shown.shape)
            call.edges.append(get_gradient_edge(whole))
            outputs[at] = whole
        self.calls.append(call)
        if len(outputs) == 1:
            # A frozen BatchNorm loses the layout, which both autograd and our rule need. So it is copied once for both.
            laid_out = call.func is F.conv2d and _in_channels_last(outputs[0])
            self._handles.append(add_hook(outputs[0], self._hook(call, shapes[0], laid_out)))
            return

        def together(gradients: Sequence[Tensor | None]) -> None:
            if self._on_call is not None:
                with DisableTorchFunction():
                    pairs = zip(gradients, shapes, strict=True)
                    shaped = tuple([g if g is None or s is None else g.reshape(s) for g, s in pairs])
                self._on_call(call, shaped)

        self._handles.append(torch.autograd.graph.register_multi_grad_hook(outputs, together).remove)

    def _hook(self, call: Call, shape: torch.Size | None, laid_out: bool) -> Callable[[Tensor | None], Tensor | None]:
        """What to do with the gradient of the only output of a call."""
        if shape is None and not laid_out:

            def arrived(gradient: Tensor | None) -> None:
                if self._on_call is not None:
                    self._on_call(call, (gradient,))

            return arrived

        # Autograd would sum the gradient of a trained bias in this layout too, which would change its last bits.
        handed_on = laid_out and len(call.met) == 1

        def shaped(gradient: Tensor | None) -> Tensor | None:
            if self._on_call is None:
                return None
            seen = gradient
            if gradient is not None:
                with DisableTorchFunction():
                    if laid_out:
                        gradient = gradient.contiguous(memory_format=torch.channels_last)
                    seen = gradient if shape is None else gradient.reshape(shape)
            self._on_call(call, (seen,))
            return gradient if handed_on else None

        return shaped


def _cast(args: tuple[Any, ...], data: list[Tensor]) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Cast the input as autocast would. So the tensor that autograd saves is the same tensor that is kept here."""
    x = args[0]
    if not isinstance(x, Tensor) or x.dtype != torch.float32:
        return args, data
    device = x.device.type
    if not torch.is_autocast_enabled(device) or id(x) not in map(id, data):
        return args, data
    cast = x.to(torch.get_autocast_dtype(device))
    return (cast, *args[1:]), [cast if t is x else t for t in data]


def _grew(before: Tensor, after: Tensor, *, dim: int) -> bool:
    """Whether a parameter was repeated along the dimension of the examples."""
    return after.ndim > before.ndim or (after.ndim > dim and after.shape[dim] != before.shape[dim])


@cache
def _in_place(func: Function) -> bool:
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in _IN_PLACE_OPERATORS
    return name.endswith("_")


_IN_PLACE_OPERATORS = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"}


def _in_channels_last(x: Tensor) -> bool:
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def _whole(x: Tensor) -> Tensor:
    """Return the base tensor if a view shows all of it: an in-place operation on the view would remove it from the graph."""
    base = x._base
    if base is None or base.grad_fn is None or base.numel() != x.numel():
        return x
    return base if base.is_contiguous() and x.is_contiguous() else x


# ---------------------------------------------------------------------------------------------------- where examples are

BatchAxis = Literal["first", "second", "flattened", "interleaved"]
"""Where the examples are in a tensor: in the first or second dimension, or merged into one dimension with the next one
("flattened") or with the previous one ("interleaved")."""

_AXES: tuple[BatchAxis, ...] = get_args(BatchAxis)

# A form: the parameters of a function, or one of its arguments; the number of the call, because another call may have its
# examples in another axis; and the axes that the shape allows. A later batch may allow other axes, for example if it has as
# many positions as examples.
Form = tuple[str, int, int, bool, tuple[BatchAxis, ...]]


class KnownAxes:
    """The axis of the examples in calls and their arguments, as confirmed by a check."""

    def __init__(self) -> None:
        self.confirmed: dict[Form, BatchAxis | None] = {}
        self._usual: dict[tuple[str, int, int], BatchAxis | None] = {}  # the latest forms, by number of dimensions

    def confirm(self, axes: dict[Form, BatchAxis | None]) -> None:
        self.confirmed |= axes
        self._usual |= {form[:3]: axis for form, axis in axes.items()}

    def likely(self, form: Form, guess: BatchAxis | None) -> BatchAxis | None:
        """The likely axis of a new form: the axis of the latest form if the shape allows it, else a guess."""
        usual = self._usual.get(form[:3], guess)
        return usual if usual is None or usual in form[4] else guess


def form_of(use: str, number: int, shape: tuple[int, ...], examples: int) -> Form:
    # A batch of one example confirms nothing for larger batches, because every row belongs to this example.
    return use, number, len(shape), examples == 1, _allowed(shape, examples)


@lru_cache
def _allowed(shape: tuple[int, ...], examples: int) -> tuple[BatchAxis, ...]:
    return tuple([axis for axis in _AXES if fits(axis, shape, examples)])


def guess_axis(shape: tuple[int, ...], examples: int, *, leading: bool = False) -> BatchAxis | None:
    """Guess the axis from the shape; the check of the first refresh finds a wrong guess.

    `leading`: the function allows examples only in the first dimension.
    """
    guesses: tuple[BatchAxis, ...] = ("first", "second", "flattened")
    if leading or len(shape) == 2:
        # If the last dimension has as many entries as there are examples, these are more likely features or channels.
        guesses = ("first", "flattened") if leading else ("first", "flattened", "second")
    return next((axis for axis in guesses if fits(axis, shape, examples)), None)


def fits(axis: BatchAxis, shape: tuple[int, ...], examples: int) -> bool:
    if axis == "second":
        return len(shape) > 1 and shape[1] == examples
    if len(shape) == 0:
        return False
    return shape[0] == examples if axis == "first" else shape[0] > 0 and shape[0] % examples == 0


def by_example(x: Tensor, axis: BatchAxis, examples: int) -> Tensor:
    """m x r x the rest: r positions of the first dimension belong to each example."""
    if axis == "second":
        return x.movedim(1, 0)
    if axis == "interleaved":
        return x.reshape(-1, examples, *x.shape[1:]).movedim(1, 0)
    return x.reshape(examples, -1, *x.shape[1:])
