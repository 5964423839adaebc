"""Per-example gradients of the parameters of common functions: one rule for each function.

A rule gets one call of its function, with the arguments by name and the gradient of the result. It
yields each parameter with the gradients of the single examples. Where a result has several
positions for each example (tokens, pixels), the gradient of an example is the sum over its
positions t:

    linear        weight: Σ_t g_t x_tᵀ            bias: Σ_t g_t
    convolution   weight: Σ_t g_t window_tᵀ       bias: Σ_t g_t
    norms         weight: Σ_t g_t ⊙ normalised_t  bias: Σ_t g_t
    embedding     row i:  Σ g_t over the positions t that looked up row i

The recorder asks `rule_for` whether it can record a call; any other function of a parameter is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attittud.engine.base import UnsupportedError
from attittud.engine.gradients import Dense, Outer, PerExampleGradient, Rows, Windows

Function = Callable[..., Any]
Gradients = Iterator[tuple[Tensor, PerExampleGradient]]

SMALL_TABLE = 1024
"""An embedding with at most this many rows has its gradient formed as a product of matrices."""


@dataclass(frozen=True, slots=True)
class Use:
    """One call of a function when the gradient of its result arrives."""

    arguments: dict[str, Any]
    asked: Set[int]
    """Ids of the arguments whose per-example gradients are needed."""
    gradient: Tensor
    examples: int
    dim: int
    """The dimension of the examples: 0, or 1 inside of `nn.MultiheadAttention`."""

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def asks(self, tensor: object) -> bool:
        """Whether an argument's per-example gradients are needed."""
        return id(tensor) in self.asked

    def operand(self, x: Tensor) -> Tensor:
        """Return an input as the function used it: under autocast, in the type of its result."""
        if self.gradient.dtype.itemsize == 2:
            return x.to(self.gradient.dtype)
        return x

    def by_example(self, x: Tensor) -> Tensor:
        """m x r x the rest: r entries, which follow each other, belong to one example."""
        if self.dim == 1:
            return x.movedim(1, 0)
        return x.reshape(self.examples, -1, *x.shape[1:])

    def positions(self, x: Tensor) -> Tensor:
        """m x positions x features."""
        if self.dim == 0 and x.ndim == 3 and x.shape[0] == self.examples:
            return x
        return self.by_example(x).flatten(1, -2)

    def outer(self, left: Tensor, right: Tensor) -> PerExampleGradient:
        """Multiply two tensors position by position, and sum over the positions of each example."""
        return Outer(self.positions(self.operand(left)), self.positions(self.operand(right)))

    def summed_to(self, values: Tensor, shape: Sequence[int]) -> PerExampleGradient:
        """Sum each example's part of `values` to the shape of the tensor that was broadcast."""
        full = [1] * (values.ndim - len(shape)) + list(shape)
        if full[0] != 1:
            raise UnsupportedError(
                f"an argument of shape {tuple(shape)} has entries of its own for every example"
            )
        values = self.by_example(values).sum(1)
        dims = []
        for dim in range(1, values.ndim):
            if full[dim] == 1 and values.shape[dim] > 1:
                dims.append(dim)
        if dims:
            values = values.sum(dims)
        return Dense(values)


def _sum(g: Tensor, dims: int | list[int]) -> Tensor:
    """Sum in float32 at least."""
    if g.dtype.itemsize < 4:
        return g.sum(dims, dtype=torch.float32)
    return g.sum(dims)


# ------------------------------------------------------------------------------------------- layers


def linear(use: Use) -> Gradients:
    """weight (o x i) and bias (o), with input ... x i."""
    g = use.positions(use.gradient)
    weight = use["weight"]
    bias = use["bias"]
    if use.asks(weight):
        yield weight, Outer(g, use.positions(use.operand(use["input"])))
    if use.asks(bias):
        yield bias, Dense(_sum(g, 1))


def matmul(use: Use) -> Gradients:
    """other (i x o), with input ... x i: Σ_t x_t g_tᵀ."""
    yield use["other"], use.outer(use["input"], use.gradient)


def addmm(use: Use) -> Gradients:
    """input + mat1 @ mat2, as in GPT-2's projections: Σ_t x_t g_tᵀ, and Σ_t g_t for a bias."""
    if use.asks(use["mat2"]):
        yield use["mat2"], use.outer(use["mat1"], use.gradient)
    if use.asks(use["input"]):
        yield use["input"], use.summed_to(use.gradient, use["input"].shape)


def embedding(use: Use) -> Gradients:
    """weight (rows x features), with one index for each position. Looking up the padding row gives
    no gradient.
    """
    if use["scale_grad_by_freq"]:
        raise UnsupportedError("scale_grad_by_freq divides by counts over all examples")
    weight = use["weight"]
    padding = use["padding_idx"]
    g = use.positions(use.gradient)
    index = use.by_example(use["input"]).flatten(1)
    if padding is not None:
        g = torch.where((index == padding % weight.shape[0])[:, :, None], 0.0, g)
    if weight.shape[0] <= SMALL_TABLE:
        # Many positions add to the same row (positions, token types). A product of matrices adds
        # them in parallel.
        rows = torch.arange(weight.shape[0], device=index.device)
        chosen = (index[:, :, None] == rows).to(g.dtype)
        yield weight, Outer(chosen, g)
    else:
        yield weight, Rows(g, index, weight.shape)


def convolution(use: Use) -> Gradients:
    """weight (o x i/groups x window) and bias (o), with input N x i x space in one to three
    dimensions.
    """
    weight = use["weight"]
    bias = use["bias"]
    if use.gradient.ndim != weight.ndim:
        raise UnsupportedError("its input has no dimension for the examples")
    if use.asks(bias):
        g = use.by_example(use.gradient)
        yield bias, Dense(_sum(g, [1, *range(3, g.ndim)]))
    if use.asks(weight):
        dims = weight.ndim - 2
        stride = _tuple(use["stride"], dims)
        dilation = _tuple(use["dilation"], dims)
        pads = _pads(use["padding"], weight.shape[2:], dilation)
        x = use.operand(use["input"])
        steps = (stride, dilation)
        yield weight, Windows(use.gradient, x, weight, use.examples, steps, pads, use["groups"])


def _tuple(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    """One number for each dimension of a window, from one number for all of them, or from several."""
    if isinstance(value, int):
        value = (value,)
    if len(value) == 1:
        return tuple(value) * dims
    return tuple(value)


def _pads(padding: Any, window: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Return the paddings in the form that F.pad takes: the last dimension first."""
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


# ------------------------------------------------------------------------------------ normalisation


def _affine(use: Use, normalised: Callable[[], Tensor], features: int = 0) -> Gradients:
    """weight * normalised + bias, over the channels or over the last `features` dimensions.

    `normalised` computes the normalised input again, once the weight's gradient is needed.
    """
    g = use.by_example(use.gradient)
    dims = [1, *range(3, g.ndim)]
    if features:
        dims = list(range(1, g.ndim - features))
    weight: Any = use["weight"]
    bias: Any = use.arguments.get("bias")
    if use.asks(weight):
        yield weight, Dense((g * use.by_example(normalised())).sum(dims))
    if use.asks(bias):
        yield bias, Dense(_sum(g, dims))


def layer_norm(use: Use) -> Gradients:
    """Normalises over the last dimensions, whose sizes are `normalized_shape`."""
    shape = use["normalized_shape"]
    x = use["input"]
    eps = use["eps"]
    return _affine(use, lambda: F.layer_norm(x, shape, None, None, eps), len(shape))


def rms_norm(use: Use) -> Gradients:
    """As `layer_norm`, without a mean and a bias."""
    shape = use["normalized_shape"]
    x = use["input"]
    eps = use["eps"]
    return _affine(use, lambda: F.rms_norm(x, shape, None, eps), len(shape))


def group_norm(use: Use) -> Gradients:
    """Normalises groups of channels of single examples."""
    x = use["input"]
    groups = use["num_groups"]
    eps = use["eps"]
    return _affine(use, lambda: F.group_norm(x, groups, None, None, eps))


def instance_norm(use: Use) -> Gradients:
    """Normalises channels by statistics of the single example, or by running statistics."""
    of_example = use["use_input_stats"]
    mean = var = None
    if not of_example:
        mean = use["running_mean"]
        var = use["running_var"]
    x = use["input"]
    eps = use["eps"]
    return _affine(use, lambda: F.instance_norm(x, mean, var, None, None, of_example, 0.0, eps))


def batch_norm(use: Use) -> Gradients:
    """Normalises channels by running statistics; statistics of the batch are refused."""
    if use["training"]:
        raise UnsupportedError("it normalises by statistics of the batch")
    x = use["input"]
    mean = use["running_mean"]
    var = use["running_var"]
    eps = use["eps"]
    return _affine(use, lambda: F.batch_norm(x, mean, var, None, None, False, 0.0, eps))


# ----------------------------------------------------------------------------------- raw parameters


def addition(use: Use) -> Gradients:
    """A parameter that is broadcast and added to data: a bias, position embeddings."""
    for tensor in (use["input"], use["other"]):
        if use.asks(tensor):
            yield tensor, use.summed_to(use.gradient, tensor.shape)


def multiplication(use: Use) -> Gradients:
    """A parameter that is broadcast and multiplied with data: a scale. Its gradient is the sum of g
    ⊙ the other factor.
    """
    for tensor, factor in ((use["input"], use["other"]), (use["other"], use["input"])):
        if use.asks(tensor):
            yield tensor, use.summed_to(use.gradient * factor, tensor.shape)


def expansion(use: Use) -> Gradients:
    """A parameter that is repeated for every example: a class token, a prompt."""
    yield use["input"], use.summed_to(use.gradient, use["input"].shape)


# ---------------------------------------------------------------------------------------- all rules


class Rule(NamedTuple):
    """How the gradients of one function's parameters are formed, and what of a call must be
    recorded for it.
    """

    gradients: Callable[[Use], Gradients]
    defaults: dict[str, Any]
    """The function's arguments with their defaults; `...` where there is none."""
    data: tuple[str, ...]
    """The arguments that may depend on the examples."""
    needed: tuple[str, ...]
    """The arguments of `data` whose values the gradients need."""


def _rule(
    gradients: Callable[[Use], Gradients], arguments: dict[str, Any], data: str = "input"
) -> Rule:
    """Return a rule for a function with one argument of data, whose value the gradients need."""
    return Rule(gradients, arguments, (data,), (data,))


_CONVOLUTION = {"input": ..., "weight": ..., "bias": None, "stride": 1, "padding": 0}
_CONVOLUTION |= {"dilation": 1, "groups": 1}
_EMBEDDING = {"input": ..., "weight": ..., "padding_idx": None, "max_norm": None, "norm_type": 2.0}
_EMBEDDING |= {"scale_grad_by_freq": False, "sparse": False}
_AFFINE = {"weight": None, "bias": None, "eps": 1e-5}
_STATISTICS = {"input": ..., "running_mean": None, "running_var": None}
_STATISTICS |= {"weight": None, "bias": None}
_INSTANCE_NORM = _STATISTICS | {"use_input_stats": True, "momentum": 0.1, "eps": 1e-5}
_BATCH_NORM = _STATISTICS | {"training": False, "momentum": 0.1, "eps": 1e-5}
_RMS_NORM = {"input": ..., "normalized_shape": ..., "weight": None, "eps": None}
_PAIR = {"input": ..., "other": ...}
_BOTH = ("input", "other")

_ADDITIONS = (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
_PRODUCTS = (torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__)
_MATRIX_PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)

RULES: dict[Function, Rule] = {
    F.linear: _rule(linear, {"input": ..., "weight": ..., "bias": None}),
    torch.addmm: _rule(addmm, {"input": ..., "mat1": ..., "mat2": ...}, "mat1"),
    F.embedding: _rule(embedding, _EMBEDDING),
    F.layer_norm: _rule(layer_norm, {"input": ..., "normalized_shape": ..., **_AFFINE}),
    F.rms_norm: _rule(rms_norm, _RMS_NORM),
    F.group_norm: _rule(group_norm, {"input": ..., "num_groups": ..., **_AFFINE}),
    F.instance_norm: _rule(instance_norm, _INSTANCE_NORM),
    F.batch_norm: _rule(batch_norm, _BATCH_NORM),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _rule(convolution, _CONVOLUTION)),
    **dict.fromkeys(_MATRIX_PRODUCTS, _rule(matmul, _PAIR)),
    **dict.fromkeys(_ADDITIONS, Rule(addition, _PAIR, _BOTH, ())),
    **dict.fromkeys(_PRODUCTS, Rule(multiplication, _PAIR, _BOTH, _BOTH)),
}
EXPANSION = Rule(expansion, {"input": ...}, (), ())


def rule_for(
    function: Function, args: Sequence[Any], kwargs: dict[str, Any], data: Set[int]
) -> tuple[Rule, dict[str, Any]] | None:
    """Return the rule for a call and its arguments by name; None if there is no rule for it.

    data: ids of the arguments that may depend on the examples.
    """
    rule = RULES.get(function)
    if rule is None or len(args) > len(rule.defaults):
        return None
    arguments = rule.defaults | dict(zip(rule.defaults, args, strict=False)) | kwargs
    if len(arguments) != len(rule.defaults):  # an argument that the rule does not know: `alpha`
        return None
    for name, value in arguments.items():
        # A missing argument is found by identity, because comparing a tensor by value takes a
        # hundred times as long.
        is_missing = value is ...
        is_unexpected_data = id(value) in data and name not in rule.data
        if is_missing or is_unexpected_data:
            return None
    if rule.gradients is matmul and arguments["other"].ndim != 2:
        return None
    if rule.data != _BOTH and id(arguments[rule.data[0]]) not in data:
        return None  # a parameter in the place of the data
    return rule, arguments
