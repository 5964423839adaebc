"""The strategies that are compared; strategies of the command line are taken from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from attittud import Guide, presets
from attittud_lab.config.schema import StrategyConfig
from attittud_lab.strategies import make_strategy

from .train import Make, StepLosses, Stepper

Weights = tuple[float, ...]
WEIGHTS: dict[int, tuple[Weights, ...]] = {
    1: ((0.03,), (0.1,), (0.2,), (0.4,), (0.7,), (1,), (2,), (4,)),
    2: ((0.1, 0.1), (0.4, 0.4), (1, 1), (3, 3), (1, 0), (0, 1), (1, 0.3), (0.3, 1)),
}
"""The eight runs of tuned multitask by number of sources: weights of their losses, the best on validation is taken."""
AUTO = "auto"
PRESET = "preset "
SINGLE = ("primary_only", "pcgrad", "cosine_gate", "bloop")
ROWS = ("primary_only", "multitask", "pcgrad", "cosine_gate", "bloop", "best_preset", AUTO)
"""Names of the rows of the table."""


@dataclass(frozen=True)
class Entry:
    """One training run of a pair and seed."""

    name: str
    row: str
    """The row of the table that it belongs to; the best of its runs is taken."""
    make: Make
    judges: bool = False


class Auto:
    """`eta="auto"`, as a user would write it."""

    def __init__(self, model: nn.Module, sources: Sequence[str], seed: int) -> None:
        self.guide = Guide(model, eta="auto", seed=seed)

    def step(self, losses: StepLosses) -> None:
        self.guide.backward(losses.primary(), losses.auxiliary(), judge=losses.judge)


def named(name: str, weights: Sequence[float], model: nn.Module, sources: Sequence[str], seed: int) -> Stepper:
    """A strategy of the command line; a single weight is for every source.

    The largest of all weights, the primary one among them, is made 1: more auxiliary weight must not mean larger steps.
    """
    weights = weights if len(weights) > 1 else weights * len(sources)
    most = max(weights)
    config = StrategyConfig(name=name, primary_weight=1 / most) if most > 1 else StrategyConfig(name=name)
    scaled = {source: weight / max(most, 1) for source, weight in zip(sources, weights, strict=True)}
    return make_strategy(config, model, weights=scaled, seed=seed)


def entries(sources: int = 1) -> dict[str, Entry]:
    """Every run of a pair and seed, for pairs with one auxiliary source or two."""
    found = [Entry(name, name, partial(named, name, (1.0,))) for name in SINGLE]
    for weights in WEIGHTS[sources]:
        name = " ".join(f"{weight:g}" for weight in weights)
        found.append(Entry(f"multitask {name}", "multitask", partial(named, "multitask", weights)))
    found += [Entry(PRESET + name, "best_preset", partial(named, name, (1.0,))) for name in presets()]
    found += [Entry(AUTO, AUTO, Auto, judges=True)]
    return {entry.name: entry for entry in found}
