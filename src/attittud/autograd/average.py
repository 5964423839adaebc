"""Averages of the weights before and after a training run: the free alternative to every way of protecting a model.

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
    """A copy of the parameters that want a gradient, in the memory of the CPU."""
    wanted = ((name, parameter) for name, parameter in _named(model) if parameter.requires_grad)
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in wanted}


@contextmanager
def interpolate(model: nn.Module, start: Mapping[str, Tensor], share: float) -> Iterator[None]:
    """Inside, parameters are (1 - share) * start + share * end; afterwards they are the end weights again, to the bit.

    `start`: from `weights_of`, before training. A sharded model (FSDP2) may have had whole parameters then.
    """
    before = placed(model, start)
    held = {name: local(parameter).detach() for name, parameter in _named(model)}
    end = {name: held[name].clone() for name in before}
    try:
        for name, old in before.items():
            held[name].copy_(torch.lerp(old, held[name], share))
        yield
    finally:
        _reshard(model)
        for name, new in end.items():
            held[name].copy_(new)


def placed(model: nn.Module, start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Start weights as this worker needs them: its shards, with the type and on the device of the parameters."""
    _reshard(model)
    named = dict(_named(model))
    if strangers := [name for name in start if name not in named]:
        raise ValueError(
            f"the model has no parameter {strangers[0]!r}; take start= from weights_of() of the same model"
        )
    return {name: _part(old, named[name]).to(local(named[name])).detach() for name, old in start.items()}


def averages(
    model: nn.Module, start: Mapping[str, Tensor], evaluate: Callable[[], T], shares: Sequence[float] = SHARES
) -> dict[float, T]:
    """What `evaluate` returns at each average: share 0 is the model before training, 1 the model after it.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> start = weights_of(model)
    >>> _ = nn.init.constant_(model.weight, 3 + float(start["weight"]))
    >>> found = averages(model, start, lambda: (model.weight - start["weight"]).item(), [0, 0.5, 1])
    >>> {share: round(moved, 4) for share, moved in found.items()}
    {0: 0.0, 0.5: 1.5, 1: 3.0}
    """
    found = {}
    for share in shares:
        with interpolate(model, start, share):
            found[share] = evaluate()
    return found


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters under the names that they have without torch.compile, which may come after the start."""
    for name, parameter in model.named_parameters():
        yield name.replace("_orig_mod.", ""), parameter


def _reshard(model: nn.Module) -> None:
    """Let FSDP2 show shards: after a forward pass it may hold whole parameters, which would not follow a change of these."""
    for module in model.modules():
        if callable(reshard := getattr(module, "reshard", None)):
            reshard()


def _part(old: Tensor, parameter: nn.Parameter) -> Tensor:
    """This worker's part of a start weight."""
    if not is_sharded(parameter) or is_sharded(old) or old.shape == local(parameter).shape:
        return local(old)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return local(distribute_tensor(old.to(parameter.device), parameter.device_mesh, parameter.placements))
