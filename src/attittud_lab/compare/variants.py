"""What a strategy is tuned in: its auxiliary weight, and combinations of further settings, as many for every strategy."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attittud_lab.config.schema import CompareConfig, StrategyConfig
from attittud_lab.data.tasks import mix
from attittud_lab.strategies import find

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
    fixed = strategy.primary_weight is not None or not find(strategy.name).tunes_primary_weight
    space = {path: values for path, values in settings.space.items() if not (fixed and path == PRIMARY_WEIGHT)}
    return [Variant(weight, changes) for weight in weights for changes in _draws(space, settings.draws)]


def _draws(space: Mapping[str, Sequence[str]], count: int) -> list[tuple[str, ...]]:
    """The first value of every setting, then random combinations in which all values have their turn, none twice.

    They depend on the space alone: strategies with the same space try the same.
    """
    wanted = min(count, math.prod(len(set(values)) for values in space.values()))
    columns = [_turns(path, values) for path, values in space.items()]
    found: dict[tuple[str, ...], None] = {}
    while len(found) < wanted:
        found[tuple(f"{path}={next(column)}" for path, column in zip(space, columns, strict=True))] = None
    return list(found)


def _turns(path: str, values: Sequence[str]) -> Iterator[str]:
    """The first value, the others in random order, and so on with all of them: few draws see as much as they can."""
    order, rest = random.Random(mix("space", path)), list(values[1:])
    yield values[0]
    while True:
        order.shuffle(rest)
        yield from rest
        rest = list(values)
