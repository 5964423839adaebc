"""What a strategy is tuned in: its auxiliary weight, and combinations of further settings, as many for every strategy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attittud.recipes.config import CompareConfig, StrategyConfig
from attittud.recipes.mixing import MIXERS
from attittud.recipes.tasks import mix

PRIMARY_WEIGHT = "strategy.primary_weight"


@dataclass(frozen=True)
class Variant:
    """One try: a factor on the auxiliary losses, and settings that differ from the configured ones."""

    weight: float = 1.0
    changes: tuple[str, ...] = ()
    """Overrides, such as training.guided.lr=1e-3."""


def variants(strategy: StrategyConfig, settings: CompareConfig, *, tuned: bool) -> list[Variant]:
    """All tries of a strategy; one whose weight means nothing (`tuned` is False) is tuned in the other settings alone."""
    weights = sorted(set(settings.weights)) if tuned else [1.0]
    own = MIXERS.get(strategy.name)
    fixed = strategy.primary_weight is not None or (
        own is not None and (own.replay or not own.auxiliary or own.primary_weight == 0)
    )
    space = {path: values for path, values in settings.space.items() if not (fixed and path == PRIMARY_WEIGHT)}
    return [Variant(weight, changes) for weight in weights for changes in _draws(space, settings.draws)]


def _draws(space: Mapping[str, Sequence[str]], count: int) -> list[tuple[str, ...]]:
    """The first value of every setting, then random combinations without repetition.

    They depend on the space alone: strategies with the same space try the same.
    """
    first, *others = [
        tuple(f"{path}={value}" for path, value in zip(space, values, strict=True))
        for values in itertools.product(*space.values())
    ]
    random.Random(mix("space", *space)).shuffle(others)
    return [first, *others][:count]
