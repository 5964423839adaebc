"""The small networks of the suite: a shared body, a primary head, and an auxiliary head where the task is another one."""

from __future__ import annotations

from torch import Tensor, nn

from .pairs import Data, Pair

HIDDEN = 64
WIDTH = 16


class Net(nn.Module):
    """`auxiliary` is the primary head where both tasks predict the same classes."""

    def __init__(self, body: nn.Module, classes: int, outputs: int | None) -> None:
        super().__init__()
        self.body = body
        self.primary = nn.Linear(HIDDEN, classes)
        self.auxiliary = self.primary if outputs is None else nn.Linear(HIDDEN, outputs)

    def forward(self, x: Tensor, head: str = "primary") -> Tensor:
        found: Tensor = (self.primary if head == "primary" else self.auxiliary)(self.body(x))
        return found


def mlp(features: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())


def cnn(channels: int, size: int) -> nn.Module:
    """Two convolutions, down to 8 x 8 and 4 x 4 positions whatever the size."""
    return nn.Sequential(
        nn.Conv2d(channels, WIDTH, 5, stride=size // 8, padding=2),
        nn.ReLU(),
        nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * WIDTH * 16, HIDDEN),
        nn.ReLU(),
    )


def make_model(pair: Pair, data: Data) -> Net:
    shape = data.primary[0].shape
    return Net(cnn(shape[1], shape[2]) if pair.model == "cnn" else mlp(shape[1]), data.classes, data.outputs)
