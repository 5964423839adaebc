"""Per-example gradients of common functions. Any other function runs again for each example alone.

A rule gets a call with its arguments by name and the gradient of its output. It yields each parameter with its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attittud._torch import tree_flatten, tree_unflatten
from attittud.engine.base import UnsupportedError, logger, quiet_vmap
from attittud.engine.gradients import Aligned, Dense, Outer, PerExampleGradient, Rows, Windows
from attittud.engine.recorder import (
    ADDITIONS,
    LEADING,
    SPREADING,
    BatchAxis,
    Call,
    Function,
    Gradients,
    by_example,
    fits,
    guess_axis,
    tensors_in,
)
from attittud.kernels import kernels

Found = Iterator[tuple[Tensor, PerExampleGradient]]

SMALL_TABLE = 1024  # an embedding with at most this many rows has its gradient formed as a product of matrices


@dataclass(slots=True)
class Bound:
    """A call when the gradient of its output arrives."""

    call: Call
    arguments: dict[str, Any]
    gradient: Tensor
    examples: int
    axis: BatchAxis

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def asks(self, tensor: object) -> bool:
        """Whether the gradient of this argument is needed."""
        return id(tensor) in map(id, self.call.met)

    def operand(self, x: Tensor) -> Tensor:
        """Return an input as the function used it: under autocast, in the type of its result."""
        return x.to(self.gradient.dtype) if self.gradient.dtype.itemsize == 2 else x

    def positions(self, x: Tensor) -> Tensor:
        """Reshape `... x features` to m x positions x features."""
        if x.ndim < 2 or (x.ndim == 2 and self.axis == "second"):
            raise UnsupportedError(
                f"its result has shape {tuple(self.call.shape)}, in which only the last dimension, the features, has as many "
                "entries as there are examples"
            )
        if self.axis in ("first", "flattened"):
            whole = x.ndim == 3 and x.shape[0] == self.examples
            return x if whole else x.reshape(self.examples, -1, x.shape[-1])
        return by_example(x, self.axis, self.examples).flatten(1, -2)

    def outer(self, left: Tensor, right: Tensor) -> PerExampleGradient:
        """Multiply two tensors example by example, and sum over positions."""
        return Outer(self.positions(self.operand(left)), self.positions(self.operand(right)))

    def reduced(self, values: Tensor, shape: Sequence[int]) -> PerExampleGradient:
        """Sum each example's part down to the shape of the tensor that was broadcast."""
        kept = [1] * (len(self.call.shape) - len(shape)) + list(shape)
        batch_dim = 1 if self.axis == "second" else 0
        own = kept[batch_dim] if len(kept) == len(self.call.shape) else None
        if own != 1 and (own != self.examples or self.axis != "first"):
            raise UnsupportedError(
                f"an argument of shape {tuple(shape)} has no dimension for the examples, but the result of shape "
                f"{tuple(self.call.shape)} has one"
            )
        del kept[batch_dim]
        values = by_example(values, self.axis, self.examples)
        if self.axis != "second":
            values = values.sum(1)
        summed = [at + 1 for at, size in enumerate(kept) if size == 1 and values.shape[at + 1] > 1]
        values = values.sum(summed) if summed else values
        return Dense(values) if own == 1 else Aligned(values)


def _sum(g: Tensor, dims: int | list[int]) -> Tensor:
    """Sum in float32 at least."""
    return g.sum(dims, dtype=torch.float32 if g.dtype.itemsize < 4 else g.dtype)


def linear(b: Bound) -> Found:
    g, weight, bias = b.positions(b.gradient), b["weight"], b["bias"]
    if b.asks(weight):
        yield weight, Outer(g, b.positions(b.operand(b["input"])))
    if bias is not None and b.asks(bias):
        yield bias, Dense(_sum(g, 1))


def matmul(b: Bound) -> Found:
    yield b["other"], b.outer(b["input"], b.gradient)


def addmm(b: Bound) -> Found:
    if b.asks(b["mat2"]):
        yield b["mat2"], b.outer(b["mat1"], b.gradient)
    if b.asks(b["input"]):
        yield b["input"], b.reduced(b.gradient, b["input"].shape)


def embedding(b: Bound) -> Found:
    if b["scale_grad_by_freq"]:
        raise UnsupportedError("scale_grad_by_freq divides by counts over all examples")
    g = b.positions(b.gradient)
    index = by_example(b["input"], b.axis, b.examples).flatten(1)
    padding = b["padding_idx"]
    if padding is not None:
        g = torch.where((index == padding % b["weight"].shape[0])[:, :, None], 0.0, g)
    rows = b["weight"].shape[0]
    if rows <= SMALL_TABLE:
        # Many positions add to the same row (positions, token types). A product of matrices adds them in parallel.
        chosen = (index[:, :, None] == torch.arange(rows, device=index.device)).to(g.dtype)
        yield b["weight"], Outer(chosen, g)
    else:
        yield b["weight"], Rows(g, index, b["weight"].shape)


def convolution(b: Bound) -> Found:
    weight, groups = b["weight"], b["groups"]
    g = by_example(b.gradient, b.axis, b.examples)
    if b.asks(b["bias"]):
        yield b["bias"], Dense(_sum(g, [1, *range(3, g.ndim)]))
    if not b.asks(weight):
        return
    dims = weight.ndim - 2
    steps = _tuple(b["stride"], dims), _tuple(b["dilation"], dims)
    pads = _pads(b["padding"], weight.shape[2:], steps[1])
    yield weight, Windows(b.gradient, b.operand(b["input"]), weight, b.examples, steps, pads, groups)


def _tuple(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * dims if len(value) == 1 else tuple(value)


def _pads(padding: Any, window: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Return the paddings in the form that F.pad takes."""
    if padding == "valid":
        return [0, 0] * len(window)
    pads: list[int] = []
    for at in reversed(range(len(window))):
        if padding == "same":
            total = dilation[at] * (window[at] - 1)
            pads += [total // 2, total - total // 2]
        else:
            pads += [_tuple(padding, len(window))[at]] * 2
    return pads


def _affine(b: Bound, normalised: Callable[[], Tensor], features: int = 0) -> Found:
    """weight * normalised + bias, with weight and bias over the channels or over some of the last dimensions."""
    g = by_example(b.gradient, b.axis, b.examples)
    dims = list(range(1, g.ndim - features)) if features else [1, *range(3, g.ndim)]
    weight, bias = b["weight"], b.arguments.get("bias")
    if b.asks(weight):
        yield weight, Dense((g * by_example(normalised(), b.axis, b.examples)).sum(dims))
    if bias is not None and b.asks(bias):
        yield bias, Dense(_sum(g, dims))


def layer_norm(b: Bound) -> Found:
    shape = b["normalized_shape"]
    return _affine(b, lambda: F.layer_norm(b["input"], shape, None, None, b["eps"]), len(shape))


def rms_norm(b: Bound) -> Found:
    shape = b["normalized_shape"]
    return _affine(b, lambda: F.rms_norm(b["input"], shape, None, b["eps"]), len(shape))


def group_norm(b: Bound) -> Found:
    return _affine(b, lambda: F.group_norm(b["input"], b["num_groups"], None, None, b["eps"]))


def instance_norm(b: Bound) -> Found:
    # The statistics are running statistics or those of a single example, never those of the batch.
    own = b["use_input_stats"]
    mean, var = (None, None) if own else (b["running_mean"], b["running_var"])
    return _affine(b, lambda: F.instance_norm(b["input"], mean, var, None, None, own, 0.0, b["eps"]))


def batch_norm(b: Bound) -> Found:
    if b["training"]:
        raise UnsupportedError("it normalises by statistics of the batch")
    mean, var = b["running_mean"], b["running_var"]
    found = kernels() if b.gradient.is_cuda else None
    if found is not None and found.serves_channels(b.gradient, b["input"]):
        sums = found.channel_sums(b.gradient, b["input"], mean, var, b["eps"], b.examples)
        named = zip((b["weight"], b["bias"]), sums, strict=True)
        return iter([(tensor, Dense(values)) for tensor, values in named if b.asks(tensor)])
    return _affine(b, lambda: F.batch_norm(b["input"], mean, var, None, None, False, 0.0, b["eps"]))


def addition(b: Bound) -> Found:
    for met in b.call.met:
        yield met, b.reduced(b.gradient, met.shape)


def multiplication(b: Bound) -> Found:
    for met, other in ((b["input"], b["other"]), (b["other"], b["input"])):
        if b.asks(met):
            yield met, b.reduced(b.gradient * other, met.shape)


def spreading(b: Bound) -> Found:
    met, shape = b.call.met[0], list(b.call.shape)
    expected = [1] * (len(shape) - met.ndim) + list(met.shape)
    batch_dim = 1 if b.axis == "second" else 0
    shape[batch_dim] = expected[batch_dim]
    if b.call.func in (Tensor.repeat, torch.tile, Tensor.tile) and shape != expected:
        raise UnsupportedError(
            f"{b.call.name} repeats a parameter along other dimensions too, not only along the examples"
        )
    yield met, b.reduced(b.gradient, met.shape)


_NORM = {"weight": None, "bias": None, "eps": 1e-5}
_CONV = {"input": ..., "weight": ..., "bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_PAIR = {"input": ..., "other": ...}
_STATISTICS = {"input": ..., "running_mean": None, "running_var": None, "weight": None, "bias": None}

# Function -> (rule, its arguments with their defaults, the arguments that may depend on data)
RULES: dict[Function, tuple[Callable[[Bound], Found], dict[str, Any], tuple[str, ...]]] = {
    F.linear: (linear, {"input": ..., "weight": ..., "bias": None}, ("input",)),
    F.embedding: (
        embedding,
        {"input": ..., "weight": ..., "padding_idx": None, "max_norm": None, "norm_type": 2.0}
        | {"scale_grad_by_freq": False, "sparse": False},
        ("input",),
    ),
    F.layer_norm: (layer_norm, {"input": ..., "normalized_shape": ..., **_NORM}, ("input",)),
    F.rms_norm: (rms_norm, {"input": ..., "normalized_shape": ..., "weight": None, "eps": None}, ("input",)),
    F.group_norm: (group_norm, {"input": ..., "num_groups": ..., **_NORM}, ("input",)),
    F.batch_norm: (batch_norm, {**_STATISTICS, "training": False, "momentum": 0.1, "eps": 1e-5}, ("input",)),
    F.instance_norm: (
        instance_norm,
        {**_STATISTICS, "use_input_stats": True, "momentum": 0.1, "eps": 1e-5},
        ("input",),
    ),
    torch.addmm: (addmm, {"input": ..., "mat1": ..., "mat2": ...}, ("mat1",)),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), (convolution, _CONV, ("input",))),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm), (matmul, _PAIR, ("input",))),
    **dict.fromkeys(ADDITIONS, (addition, _PAIR, ("input", "other"))),
    **dict.fromkeys(
        (torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__),
        (multiplication, _PAIR, ("input", "other")),
    ),
}


def bind(
    call: Call, args: Any, kwargs: Any, data: dict[int, int]
) -> tuple[Callable[[Bound], Found], dict[str, Any]] | None:
    """Return the rule for a call and its arguments by name; None if only the generic rule applies."""
    if call.func in SPREADING:
        return spreading, {}
    if call.func not in RULES:
        return None
    rule, defaults, may_be_data = RULES[call.func]
    if len(args) > len(defaults):
        return None
    named = defaults.copy()
    named.update(zip(defaults, args, strict=False))
    if kwargs:
        named.update(kwargs)
    if len(named) != len(defaults):
        return None
    wanted = set[int]()
    for name, value in named.items():
        # A missing argument is found by identity, because comparing a tensor by value takes a hundred times as long.
        if value is ...:
            return None
        if name not in may_be_data and isinstance(value, Tensor):
            if id(value) in data:
                return None
            wanted.add(id(value))
    if rule in (addition, multiplication):
        return rule, named
    if rule in (matmul, addmm) and named["other" if rule is matmul else "mat2"].ndim != 2:
        return None
    return (rule, named) if wanted.issuperset(map(id, call.met)) else None


# ---------------------------------------------------------------------------------------------------- any function

_RECURRENT: set[Function] = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}
_CELLS: set[Function] = {torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell}
_one_by_one: set[str] = set()


def generic(
    call: Call,
    args: Any,
    kwargs: Any,
    gradients: Gradients,
    examples: int,
    given: dict[int, BatchAxis],
    axis: BatchAxis,
) -> Found:
    """Gradients with respect to the parameters of any call. The function runs again, vectorised if torch can do that.

    given: the axis of the examples in each argument that has examples, by id; axis: their axis in the result.
    """
    flat, spec = tree_flatten((args, kwargs))
    inputs, outputs = _axes(call, args, gradients, examples, given, axis)
    at = [(i, inputs[id(t)]) for i, t in enumerate(flat) if isinstance(t, Tensor) and id(t) in inputs]
    met = {id(t): t for t in call.met}
    leaves = {key: t.detach() for key, t in met.items()}
    met_at = [(i, id(t)) for i, t in enumerate(flat) if isinstance(t, Tensor) and id(t) in met]
    arrived = {j: gradient for j, gradient in enumerate(gradients) if gradient is not None}

    def run(parameters: dict[int, Tensor], sliced: list[Tensor]) -> tuple[Tensor, ...]:
        filled = list(flat)
        for (i, _), value in zip(at, sliced, strict=True):
            filled[i] = value
        for i, key in met_at:
            filled[i] = parameters[key]
        a, k = tree_unflatten(filled, spec)
        results = tensors_in((call.func(*a, **k),))
        return tuple(results[call.outputs[j]] for j in arrived)

    def one(sliced: list[Tensor], cotangents: tuple[Tensor, ...]) -> dict[int, Tensor]:
        # oneDNN's LSTM saves the tensors for its backward pass only if gradients are on, so they are on here too.
        with torch.enable_grad():
            _, product, *_ = torch.func.vjp(lambda parameters: run(parameters, sliced), leaves)
        found: dict[int, Tensor] = product(cotangents)[0]
        return found

    sliced = [_single(flat[i].detach(), axis, examples) for i, axis in at]
    cotangents = tuple(_single(gradient, outputs[j], examples) for j, gradient in arrived.items())
    for key, found in _for_each(one, sliced, cotangents, examples, call.name).items():
        yield met[key], Dense(found)


def _single(x: Tensor, axis: BatchAxis, examples: int) -> Tensor:
    """m x the input that the model would get for one example alone, with a dimension of examples of size 1."""
    rows = by_example(x, axis, examples)
    return rows.unsqueeze(2) if axis == "second" else rows


def _axes(
    call: Call, args: Any, gradients: Gradients, examples: int, given: dict[int, BatchAxis], axis: BatchAxis
) -> tuple[dict[int, BatchAxis], list[BatchAxis]]:
    """Return the axis of the examples in each argument that has examples (by id), and in the outputs."""
    if call.func in _RECURRENT:
        if not isinstance(args[2], (list, tuple)):
            raise UnsupportedError("packed sequences mix the examples")
        input_axis: BatchAxis = "first" if args[-1] else "second"
        axes: dict[int, BatchAxis] = dict.fromkeys(map(id, tensors_in((args[1],))), "second")
        return axes | {id(args[0]): input_axis}, [input_axis, "second", "second"]
    if call.func in _CELLS:
        return {id(t): "first" for t in tensors_in(args[:2])}, ["first", "first"]
    leading, outputs = call.func in LEADING, []
    for gradient in gradients:
        shape = None if gradient is None else tuple(gradient.shape)
        own = axis if shape is None or fits(axis, shape, examples) else guess_axis(shape, examples, leading=leading)
        if own is None:
            raise UnsupportedError(
                f"the result of {call.name} has shape {shape}, in which no dimension belongs to the {examples} examples"
            )
        outputs.append(own)
    return given, outputs


def _for_each(
    one: Callable[..., dict[int, Tensor]],
    sliced: list[Tensor],
    cotangents: tuple[Tensor, ...],
    examples: int,
    name: str,
) -> dict[int, Tensor]:
    if name not in _one_by_one:
        try:
            with quiet_vmap():
                return torch.func.vmap(one)(sliced, cotangents)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = str(error).split("\n")[0]
            logger.info("engine 'hooks': %s runs for one example at a time, because vmap fails (%s)", name, reason)
            _one_by_one.add(name)
    try:
        rows = [one([x[i] for x in sliced], tuple(g[i] for g in cotangents)) for i in range(examples)]
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UnsupportedError(f"{name} does not run for one example alone ({str(error).splitlines()[0]})") from error
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
