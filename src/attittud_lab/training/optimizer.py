"""The optimizer of a phase: how it is built, its learning rate, and its state after a restart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attittud_lab.config.schema import PhaseConfig


def make_optimizer(
    model: nn.Module, config: PhaseConfig, captured_on: torch.device | None
) -> torch.optim.Optimizer:
    """Build the optimizer of a phase over the parameters that train.

    `captured_on` is the device on which its step is replayed; None if steps are not captured. A
    captured step reads the learning rate from a tensor on this device, and uses the variant of the
    optimizer that torch can capture.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lr: Any = config.lr
    options: dict[str, Any] = {"weight_decay": config.weight_decay}
    on_gpu = captured_on is not None and captured_on.type == "cuda"
    if captured_on is not None:
        lr = torch.tensor(config.lr, device=captured_on)
        if on_gpu:
            options["fused"] = True
        else:
            options["foreach"] = False
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=config.momentum, **options)
    if on_gpu:
        options["capturable"] = True
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    optimizer = kind(parameters, lr, **options)
    # The first steps are deliberately not captured; torch would warn about them.
    optimizer._warned_capturable_if_run_uncaptured = True
    return optimizer


def learning_rate(config: PhaseConfig, step: int, steps: int, scale: float) -> float:
    """Return the learning rate of step number `step`, counted from 0, of `steps`.

    It rises linearly during the warm-up and then follows the schedule from lr to lr_min. `scale` is
    the factor by which schedule plateau has lowered it.
    """
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    end = min(config.lr_min, config.lr)
    progress = (step - config.warmup) / max(1, steps - config.warmup)
    if config.schedule == "plateau":
        return max(end, config.lr * scale)
    if config.schedule == "cosine":
        return end + (config.lr - end) * (1 + math.cos(math.pi * progress)) / 2
    if config.schedule == "linear":
        return config.lr + (end - config.lr) * progress
    return config.lr


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of all parameters; a captured step reads it from a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Continue from a `state_dict` of an optimizer over the same parameters.

    Its groups are not used: they hold only settings, which come from this run, and the learning
    rate, which every step sets.
    """
    groups = optimizer.state_dict()["param_groups"]
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    moments = {}
    for number, tensors in saved["state"].items():
        # Moments have the layout of their parameter; the count of steps is a scalar of its own.
        like = dict.fromkeys(tensors, parameters[number])
        if "step" in tensors:
            like["step"] = tensors["step"]
        moments[number] = laid_out(tensors, like)
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


@torch.no_grad()
def laid_out(values: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of `values`, each on the device and with the strides of the tensor in `like`
    that has its name.

    A fused optimizer needs both, and files store neither.
    """
    return {name: torch.empty_like(like[name]).copy_(value) for name, value in values.items()}
