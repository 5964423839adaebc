"""One run: a pair, a strategy, a seed. Initial weights, data and batches depend on the seed alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cuts import generator
from .models import make_model
from .offers import Examples, Sources
from .pairs import Pair

PRIMARY_BATCH = 32
AUXILIARY_BATCH = 64
CHECKS = 15
"""Looks at the validation set in the pair's number of steps; longer runs look as often."""
JUDGES = 64
"""Validation examples that judge in a step, drawn again each time; all of them where there are fewer."""
WARM = 0.1
"""Share of the pair's steps in which the learning rate rises to its value."""
RATES = Path(__file__).parent / "rates.json"


class Stepper(Protocol):
    """What fills `.grad`: the strategies of the command line, or anything with such a method."""

    def step(self, losses: StepLosses) -> Any: ...


Make = Callable[[nn.Module, Sequence[str], int], Stepper]
"""From the model, the names of the auxiliary sources and the seed."""


class StepLosses:
    """The losses of one step, computed when asked for."""

    def __init__(self, model: nn.Module, primary: Examples, auxiliary: Sources, judges: Examples | None) -> None:
        self._model, self._primary, self._auxiliary, self._judges = model, primary, auxiliary, judges

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        """Per-example losses; `detach` trains the head alone, `count` takes only the first ones."""
        x, y = self._primary[0][:count], self._primary[1][:count]
        if not detach:
            return F.cross_entropy(self._model(x), y, reduction="none")
        with torch.no_grad():
            features = self._model.body(x)
        return F.cross_entropy(self._model.primary(features), y, reduction="none")

    def auxiliary(self) -> dict[str, Tensor]:
        """Mean loss of each source."""
        return {name: self._mean(*examples) for name, examples in self._auxiliary.items()}

    def _mean(self, x: Tensor, y: Tensor) -> Tensor:
        found = self._model(x, head="auxiliary")
        return F.mse_loss(found, y) if y.is_floating_point() else F.cross_entropy(found, y)

    def judge(self) -> Tensor:
        """Per-example losses of the judges."""
        if self._judges is None:
            raise ValueError("there are no judges: the run was not given judges=True")
        return F.cross_entropy(self._model(self._judges[0]), self._judges[1], reduction="none")

    @property
    def micro(self) -> list[StepLosses]:
        """A step is taken at once."""
        return [self]

    @property
    def auxiliary_examples(self) -> int:
        return sum(len(y) for _, y in self._auxiliary.values())


@dataclass(frozen=True)
class Check:
    """A look at the model; accuracies in per cent."""

    step: int
    validation: float
    validation_loss: float
    test: float
    seconds: float
    """Processor time of all steps so far, looks not counted."""


def best(checks: Sequence[Check], most: int) -> Check:
    """Where a run of `most` steps is stopped: at the best validation accuracy, the last of equal ones."""
    return max((c for c in checks if c.step <= most), key=lambda c: (c.validation, c.step))


def learning_rate(pair: Pair) -> float:
    """Return the learning rate of the pair, the same for every strategy: see `tune`."""
    return float(json.loads(RATES.read_text(encoding="utf-8"))[pair.name]["rate"])


def run(
    pair: Pair,
    make: Make,
    seed: int,
    *,
    judges: bool = False,
    steps: int | None = None,
    rate: float | None = None,
    watch: Callable[[int, Stepper], None] | None = None,
) -> list[Check]:
    """Train, and look at the model `CHECKS` times in every `pair.steps` steps.

    With `judges` the step's losses have those of validation examples too. `watch` is called after every step.
    """
    data = pair.build(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model(pair, data)
        strategy = make(model, list(data.auxiliary), seed)
    rate = learning_rate(pair) if rate is None else rate
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(model.parameters(), lr=rate)
        if pair.optimizer == "adam"
        else torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    )
    warm = max(1, round(WARM * pair.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / warm))
    random, random_judges = generator("batches", seed), generator("judges", seed)
    steps, every = steps or pair.steps, max(1, pair.steps // CHECKS)
    checks, seconds = [], 0.0
    for step in range(1, steps + 1):
        start = time.process_time()
        primary = some(data.primary, PRIMARY_BATCH, random)
        auxiliary = {}
        for name, (x, y) in data.auxiliary.items():
            j = torch.randint(len(y), (AUXILIARY_BATCH // len(data.auxiliary),), generator=random)
            auxiliary[name] = x[j], y[j]
        optimizer.zero_grad()
        asked = some(data.validation, JUDGES, random_judges) if judges else None
        strategy.step(StepLosses(model, primary, auxiliary, asked))
        optimizer.step()
        schedule.step()
        seconds += time.process_time() - start
        if watch is not None:
            watch(step, strategy)
        if step % every == 0:
            checks.append(Check(step, *look(model, data.validation), look(model, data.test)[0], seconds))
    return checks


def some(examples: Examples, count: int, random: torch.Generator) -> Examples:
    """At random, without repetition; all where there are fewer."""
    rows = torch.randperm(len(examples[1]), generator=random)[:count]
    return examples[0][rows], examples[1][rows]


@torch.no_grad()
def look(model: nn.Module, examples: Examples) -> tuple[float, float]:
    """Accuracy in per cent, and mean loss."""
    logits = model(examples[0])
    accuracy = 100 * (logits.argmax(1) == examples[1]).double().mean()
    return float(accuracy), float(F.cross_entropy(logits, examples[1]))
