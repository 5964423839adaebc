"""Per-example gradients of any function: it runs again for every example alone, vectorised where torch can."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from attittud._torch import tree_flatten, tree_unflatten
from attittud.engine.base import UnsupportedError, logger
from attittud.engine.per_example.calls import (
    LEADING,
    BatchAxis,
    Call,
    Function,
    Gradients,
    fits,
    guess_axis,
    single,
    tensors_in,
)
from attittud.engine.per_example.gradients import Dense, PerExampleGradient

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
) -> Iterator[tuple[Tensor, PerExampleGradient]]:
    """Gradients with respect to the parameters that a call met.

    given: where the examples are in the arguments that have them, by id; axis: in the result.
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
        # oneDNN's LSTM keeps what its backward pass needs only where gradients are on around it; there are none to find there.
        with torch.enable_grad():
            _, product, *_ = torch.func.vjp(lambda parameters: run(parameters, sliced), leaves)
        found: dict[int, Tensor] = product(cotangents)[0]
        return found

    sliced = [single(flat[i].detach(), axis, examples) for i, axis in at]
    cotangents = tuple(single(gradient, outputs[j], examples) for j, gradient in arrived.items())
    for key, found in _for_each(one, sliced, cotangents, examples, call.name).items():
        yield met[key], Dense(found)


def _axes(
    call: Call, args: Any, gradients: Gradients, examples: int, given: dict[int, BatchAxis], axis: BatchAxis
) -> tuple[dict[int, BatchAxis], list[BatchAxis]]:
    """Where the examples are: in the arguments that have them (by id), and in the outputs."""
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
                f"the result of {call.name} has shape {shape}, in which no dimension is that of the {examples} examples"
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
            with warnings.catch_warnings():
                # torch loops inside for the few operations without a batching rule: slower, not wrong.
                warnings.filterwarnings("ignore", message=".*batching rule.*", category=UserWarning)
                return torch.func.vmap(one)(sliced, cotangents)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = str(error).split("\n")[0]
            logger.info("engine 'hooks': %s one example at a time, because vmap cannot (%s)", name, reason)
            _one_by_one.add(name)
    try:
        rows = [one([x[i] for x in sliced], tuple(g[i] for g in cotangents)) for i in range(examples)]
    except (RuntimeError, ValueError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UnsupportedError(f"{name} does not run for one example alone ({str(error).splitlines()[0]})") from error
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
