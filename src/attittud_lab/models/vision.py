"""Image networks: a perceptron, a plain convolutional network, the paper's wide residual network and ResNet-18."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud_lab.errors import InputError

if TYPE_CHECKING:
    from attittud_lab.models.registry import Wanted


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


def mlp(wanted: Wanted) -> MLP:
    return MLP(wanted.shape, wanted.config.width, wanted.config.dropout)


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


def small_cnn(wanted: Wanted) -> SmallCNN:
    return SmallCNN(wanted.shape, wanted.config.width, wanted.config.dropout)


def _groups(channels: int) -> int:
    return next(groups for groups in (8, 4, 2, 1) if channels % groups == 0)


def kaiming_convolutions(module: nn.Module) -> None:
    """Kaiming-normal, fan-out, as the residual networks' papers have it."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class WideBlock(nn.Module):
    """Pre-activation: norm, ReLU, convolution, twice, with dropout between the two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.shortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.norm1(x))
        y = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(activated)))))
        return y + (x if self.shortcut is None else self.shortcut(activated))  # type: ignore[no-any-return]  # modules return Any


class WideResNet(nn.Module):
    """Zagoruyko and Komodakis 2016; depth 22 and width 4 is the network of the ATTITTUD paper."""

    def __init__(self, channels: int, depth: int, width: int, dropout: float) -> None:
        super().__init__()
        blocks, remainder = divmod(depth - 4, 6)
        if remainder or blocks < 1 or width < 1:
            raise InputError(
                f"model wideresnet-{depth}-{width}: the depth must be 6n + 4, such as 10, 16, 22 or 28, and the width at least 1"
            )
        widths = [16, 16 * width, 32 * width, 64 * width]
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        groups = []
        for group in range(3):
            inputs, outputs = widths[group], widths[group + 1]
            stride = 1 if group == 0 else 2
            groups += [
                WideBlock(inputs if i == 0 else outputs, outputs, stride if i == 0 else 1, dropout)
                for i in range(blocks)
            ]
        self.blocks = nn.Sequential(*groups)
        self.norm = nn.BatchNorm2d(widths[3])
        self.features = widths[3]
        kaiming_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3))


def wide_resnet(wanted: Wanted, depth: str, width: str) -> WideResNet:
    return WideResNet(wanted.shape[0], int(depth), int(width), wanted.config.dropout)


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


class ResNet18(nn.Module):
    """He et al. 2016. Images below 96 pixels get a 3 x 3 stem without pooling, as is usual for CIFAR; from 48 with stride 2."""

    def __init__(self, shape: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        small = shape[1] < 96
        stride = 1 if shape[1] < 48 else 2
        stem: list[nn.Module] = [
            nn.Conv2d(shape[0], 64, 3 if small else 7, stride, 1 if small else 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        ]
        self.stem = nn.Sequential(*stem, *([] if small else [nn.MaxPool2d(3, 2, 1)]))
        blocks, inputs = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(dropout)
        self.features = 512
        kaiming_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.dropout(self.blocks(self.stem(x)).mean((2, 3))), 1)


def resnet_18(wanted: Wanted) -> ResNet18:
    return ResNet18(wanted.shape, wanted.config.dropout)
