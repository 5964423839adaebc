"""Averages of the weights before and after training: a baseline against forgetting that costs
nothing.

start = weights_of(model)
...  # train
for share, loss in averages(model, start, evaluate).items(): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from attittud.autograd.layout import is_sharded, local

T = TypeVar("T")
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copy the parameters that require a gradient to the memory of the CPU."""
    weights = {}
    for name, parameter in _named(model):
        if parameter.requires_grad:
            weights[name] = parameter.detach().to("cpu", copy=True)
    return weights


@contextmanager
def interpolate(model: nn.Module, start: Mapping[str, Tensor], share: float) -> Iterator[None]:
    """Set the parameters to (1 - share) * start + share * end inside the block, and restore them
    bit for bit afterwards.

    `start` comes from `weights_of`, called before training. The model may have been sharded (FSDP2)
    after that call.
    """
    start_weights = placed(model, start)
    tensors = {name: local(parameter).detach() for name, parameter in _named(model)}
    end_weights = {name: tensors[name].clone() for name in start_weights}
    try:
        for name, weight in start_weights.items():
            tensors[name].copy_(torch.lerp(weight, tensors[name], share))
        yield
    finally:
        reshard(model)
        for name, weight in end_weights.items():
            tensors[name].copy_(weight)


def placed(model: nn.Module, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the start weights as this worker needs them: its shards, in the type and on the device
    of the parameters. FSDP2 goes back to shards first.
    """
    reshard(model)
    named = dict(_named(model))
    weights = {}
    for name, weight in start.items():
        if name not in named:
            raise ValueError(
                f"the model has no parameter {name!r}; take start= from weights_of() of the same model"
            )
        parameter = named[name]
        weights[name] = _part(weight, parameter).to(local(parameter)).detach()
    return weights


def averages(
    model: nn.Module,
    start: Mapping[str, Tensor],
    evaluate: Callable[[], T],
    shares: Sequence[float] = SHARES,
) -> dict[float, T]:
    """Return the result of `evaluate` at each average, by its share: 0 is the model before training
    (`start`), 1 the model after it. `evaluate` reads the model; in the end it is as before.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> start = weights_of(model)
    >>> _ = nn.init.constant_(model.weight, 3 + float(start["weight"]))
    >>> results = averages(model, start, lambda: (model.weight - start["weight"]).item(), [0, 0.5, 1])
    >>> {share: round(moved, 4) for share, moved in results.items()}
    {0: 0.0, 0.5: 1.5, 1: 3.0}
    """
    results = {}
    for share in shares:
        with interpolate(model, start, share):
            results[share] = evaluate()
    return results


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters under their names without torch.compile, since the model may be compiled
    after the start.
    """
    for name, parameter in model.named_parameters():
        yield name.replace("_orig_mod.", ""), parameter


def reshard(model: nn.Module) -> None:
    """Make FSDP2 go back to shards. After a forward pass it may hold whole parameters, which ignore
    changes of the shards.
    """
    for module in model.modules():
        if callable(again := getattr(module, "reshard", None)):
            again()


def _part(old: Tensor, parameter: nn.Parameter) -> Tensor:
    """Return this worker's part of a start weight: the weight itself, unless it is a whole tensor
    and the parameter has been sharded since.
    """
    if not is_sharded(parameter) or is_sharded(old) or old.shape == local(parameter).shape:
        return local(old)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return local(
        distribute_tensor(old.to(parameter.device), parameter.device_mesh, parameter.placements)
    )
