"""Image networks: a perceptron, a plain convolutional network, the paper's wide residual network
and ResNet-18.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud_lab.errors import InputError

if TYPE_CHECKING:
    from attittud_lab.models import Wanted


class Layers(nn.Module):
    """Layers one after the other."""

    def __init__(self, features: int, *layers: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]  # modules return Any


def mlp(request: Wanted) -> Layers:
    """Two hidden layers, with dropout between them."""
    width = request.config.width
    first = nn.Linear(math.prod(request.shape), width)
    dropout = nn.Dropout(request.config.dropout)
    return Layers(
        width, nn.Flatten(), first, nn.ReLU(), dropout, nn.Linear(width, width), nn.ReLU()
    )


def small_cnn(request: Wanted) -> Layers:
    """Three convolutions with GroupNorm, so that examples stay independent of each other."""
    width = request.config.width
    dropout = nn.Dropout(request.config.dropout)

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        groups = math.gcd(outputs, 8)
        convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return [convolution, nn.GroupNorm(groups, outputs), nn.ReLU()]

    first = block(request.shape[0], width, 1)
    second = block(width, width, 2)
    third = block(width, 2 * width, 2)
    return Layers(
        2 * width, *first, *second, dropout, *third, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


def kaiming_convolutions(module: nn.Module) -> None:
    """Kaiming-normal initialisation, fan-out, as in the papers of the residual networks."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class WideBlock(nn.Module):
    """Pre-activation: norm, ReLU, convolution, twice, with dropout between the two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.shortcut: nn.Module | None = None
        if inputs != outputs:  # as in every block with a stride
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.norm1(x))
        y: Tensor = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(activated)))))
        if self.shortcut is None:
            return y + x
        shortcut: Tensor = self.shortcut(activated)
        return y + shortcut


class WideResNet(nn.Module):
    """Zagoruyko and Komodakis 2016; depth 22 and width 4 is the network of the ATTITTUD paper."""

    def __init__(self, channels: int, depth: int, width: int, dropout: float) -> None:
        super().__init__()
        # Three stages of `count` blocks with two convolutions each, and four further layers.
        count, remainder = divmod(depth - 4, 6)
        if remainder or count < 1 or width < 1:
            problem = f"model wideresnet-{depth}-{width}: the depth must be 6n + 4"
            raise InputError(f"{problem}, such as 10, 16, 22 or 28, and the width at least 1")
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        blocks = []
        inputs = 16
        for outputs, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            blocks.append(WideBlock(inputs, outputs, stride, dropout))
            for _ in range(count - 1):
                blocks.append(WideBlock(outputs, outputs, 1, dropout))
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.features = inputs
        kaiming_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3))


def wide_resnet(request: Wanted, depth: str, width: str) -> WideResNet:
    return WideResNet(request.shape[0], int(depth), int(width), request.config.dropout)


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.layers = nn.Sequential(
            first, nn.BatchNorm2d(outputs), nn.ReLU(), second, nn.BatchNorm2d(outputs)
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


class ResNet18(nn.Module):
    """He et al. 2016. Images below 96 pixels get a 3 x 3 stem without pooling, as is usual for
    CIFAR; from 48 with stride 2.
    """

    def __init__(self, shape: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        height = shape[1]
        stride = 1 if height < 48 else 2
        small = height < 96
        kernel = 3 if small else 7
        stem = nn.Conv2d(shape[0], 64, kernel, stride, kernel // 2, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(64), nn.ReLU())
        if not small:
            self.stem.append(nn.MaxPool2d(3, 2, 1))
        blocks = []
        inputs = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(dropout)
        self.features = inputs
        kaiming_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.dropout(self.blocks(self.stem(x)).mean((2, 3))), 1)


def resnet_18(request: Wanted) -> ResNet18:
    return ResNet18(request.shape, request.config.dropout)
