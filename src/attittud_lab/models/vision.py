"""Small image networks: a perceptron and a plain convolutional network."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Two hidden layers."""

    def __init__(self, shape: tuple[int, ...], width: int, dropout: float) -> None:
        super().__init__()
        self.features = width
        inputs = torch.Size(shape).numel()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, width), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]  # modules return Any


class SmallCNN(nn.Module):
    """Three convolutions with GroupNorm, so that examples stay independent of each other."""

    def __init__(self, shape: tuple[int, ...], width: int, dropout: float) -> None:
        super().__init__()
        self.features = 2 * width

        def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
            return [
                nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
                nn.GroupNorm(_groups(outputs), outputs),
                nn.ReLU(),
            ]

        self.layers = nn.Sequential(
            *block(shape[0], width, 1),
            *block(width, width, 2),
            nn.Dropout(dropout),
            *block(width, 2 * width, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]  # modules return Any


def _groups(channels: int) -> int:
    return next(groups for groups in (8, 4, 2, 1) if channels % groups == 0)
