"""One run: a small network, 100 primary images in every step, a batch of auxiliary ones, and a `Guide` between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud import Guide
from attittud_lab.demo.data import CLASSES, LABELS_PER_CLASS, Digits, generator
from attittud_lab.demo.rows import Row


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


Examples = tuple[Tensor, Tensor]
JUDGES_PER_CLASS = 2


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
    xa, ya = data.auxiliary
    for keywords in row.guides:
        guide = Guide(model, seed=seed, **keywords)
        steps = settings.steps // len(row.guides)
        for step in range(steps):
            i = torch.randint(len(ya), (settings.auxiliary_batch,), generator=batches)
            (xp, yp), judges = set_apart(data, guide, seed, step, steps)
            optimizer.zero_grad()
            losses = F.cross_entropy(model(xp), yp, reduction="none")
            loss = F.cross_entropy(model(xa[i], head="auxiliary"), ya[i])
            guide.backward(primary=losses, auxiliary=loss, judge=judges and partial(judge, model, *judges))
            optimizer.step()
    return model


def set_apart(data: Digits, guide: Guide, seed: int, step: int, steps: int) -> tuple[Examples, Examples | None]:
    """The primary images of a step, and its judges where the weights are to be earned.

    In the first half of the steps two images of each class judge and do not train. Then all train, but for the 20 of
    each step in which judges are heard.
    """
    x, y = data.primary
    if guide.eta != "auto":
        return (x, y), None
    early = step < steps // 2
    if not early and not guide.judge_due:
        return (x, y), None
    if early:
        chosen = torch.arange(len(y)) % LABELS_PER_CLASS < JUDGES_PER_CLASS  # they lie class by class
    else:
        chosen = torch.randperm(len(y), generator=generator(f"judges {step}", seed)) < JUDGES_PER_CLASS * CLASSES
    return (x[~chosen], y[~chosen]), (x[chosen], y[chosen])


def judge(model: Net, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


@torch.no_grad()
def accuracy(model: Net, images: Tensor, labels: Tensor) -> float:
    """Per cent right, by the primary head."""
    return 100 * float((model(images).argmax(1) == labels).double().mean())
