"""Weights averaged over the last steps of a phase, with which a portfolio evaluates its networks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class AveragedWeights:
    """An exponential mean of a model's weights and buffers over about `window` steps.

    In the mean after step t, step i of 1 to t counts in proportion to (1 - 1 / window) ** (t - i);
    the model before the first step does not count. Whole numbers, such as BatchNorm's count, are
    not averaged.
    """

    def __init__(self, model: nn.Module, window: float, device: torch.device) -> None:
        self.model = model
        self.values: dict[str, Tensor] = {}
        """The mean of each tensor of the model's state, by its name; empty before the first
        step.
        """
        self._decay = 1 - 1 / max(1.0, window)
        # The share of the newest weights. A captured step would repeat a Python number for ever.
        self._share = torch.ones((), device=device)

    def load(self, step: int) -> None:
        """Go to a step, counted from 0: its weights get the share (1 - decay) / (1 - decay **
        (step + 1)).
        """
        self._share.fill_((1 - self._decay) / (1 - self._decay ** (step + 1)))

    @torch.no_grad()
    def update(self) -> None:
        """Add the model as it is now."""
        for name, tensor in self.model.state_dict().items():
            if name not in self.values:
                self.values[name] = tensor.clone()
            elif tensor.is_floating_point():
                self.values[name].lerp_(tensor, self._share.to(tensor.dtype))
            else:
                self.values[name].copy_(tensor)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Give the model its mean weights inside the block."""
        trained = copied(self.model)
        self.model.load_state_dict(self.values)
        try:
            yield
        finally:
            self.model.load_state_dict(trained)


def copied(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights and buffers of a model, by name."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
