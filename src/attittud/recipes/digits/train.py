"""One run: a small network, 100 primary images in every step, a batch of auxiliary ones, and a `Guide` between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud import Guide
from attittud.recipes.digits.data import CLASSES, Digits, generator
from attittud.recipes.digits.rows import Row


@dataclass(frozen=True)
class Settings:
    """The same for all rows.

    Chosen with images that are never tested on (experiments/digits_settings.py), as a short training after which
    `primary_only` gains little more. Longer training makes the rows that keep wrong labels worse, because the
    network then memorises them.
    """

    hidden: int = 64
    learning_rate: float = 0.05
    momentum: float = 0.9
    auxiliary_batch: int = 128
    steps: int = 200


class Net(nn.Module):
    """A shared body; primary and auxiliary task predict the same ten classes, by one output layer or by two."""

    def __init__(self, hidden: int, own_head: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.primary = nn.Linear(hidden, CLASSES)
        self.auxiliary = nn.Linear(hidden, CLASSES) if own_head else self.primary

    def forward(self, x: Tensor, head: str = "primary") -> Tensor:
        logits: Tensor = (self.primary if head == "primary" else self.auxiliary)(self.body(x))
        return logits


def train(row: Row, data: Digits, seed: int, settings: Settings) -> Net:
    """Train one row. Initial weights and batches depend on the seed alone, so rows can be compared seed by seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Net(settings.hidden, row.own_head)
    batches = generator("batches", seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
    (xp, yp), (xa, ya) = data.primary, data.auxiliary
    for keywords in row.guides:
        guide = Guide(model, seed=seed, **keywords)
        for _ in range(settings.steps // len(row.guides)):
            i = torch.randint(len(ya), (settings.auxiliary_batch,), generator=batches)
            optimizer.zero_grad()
            losses = F.cross_entropy(model(xp), yp, reduction="none")
            loss = F.cross_entropy(model(xa[i], head="auxiliary"), ya[i])
            guide.backward(primary=losses, auxiliary=loss)
            optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: Net, images: Tensor, labels: Tensor) -> float:
    """Per cent right, by the primary head."""
    return 100 * float((model(images).argmax(1) == labels).double().mean())
