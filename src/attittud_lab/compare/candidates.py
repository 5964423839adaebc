"""The strategies that take part, the settings each is tuned in, and the folders of their runs."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from torch import nn

from attittud_lab.config.load import changed
from attittud_lab.config.schema import CompareConfig, Config, EtaWeights, StrategyConfig
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError
from attittud_lab.strategies import completed, find, make_strategy

PRIMARY_ONLY, MULTITASK = "primary_only", "multitask"
"""The simple strategies, which always take part; differences are from the first."""
PRIMARY_WEIGHT = "strategy.primary_weight"


@dataclass(frozen=True)
class Candidate:
    """A strategy before its auxiliary weight is tuned."""

    label: str
    strategy: StrategyConfig
    tuned: bool
    """Whether the strategy has an auxiliary weight."""


@dataclass(frozen=True)
class Variant:
    """One try: a factor on the auxiliary losses, and settings that differ from the configured ones."""

    weight: float = 1.0
    changes: tuple[str, ...] = ()
    """Overrides, such as training.guided.lr=1e-3."""


@dataclass(frozen=True)
class Budget:
    """Updates of the two phases; finetune is 0 in joint training."""

    guided: int
    finetune: int


@dataclass
class Tuned:
    """A strategy with its chosen settings and what a step costs."""

    candidate: Candidate
    variant: Variant
    validation: dict[Variant, float | None]
    """Mean metric of every try over the tuning seeds; None where a run diverged."""
    seconds_per_step: float
    finetune_seconds: float

    @property
    def label(self) -> str:
        return self.candidate.label


def seeds(config: Config) -> list[int]:
    return [config.seed + i for i in range(config.compare.seeds)]


def candidates(config: Config) -> list[Candidate]:
    """primary_only, multitask, the configured strategy (unless it is a portfolio) and the strategies to compare it with.

    Each is first tried on a toy model, since hours may pass before it runs.
    """
    if not config.data.auxiliary:
        raise InputError(
            "data.auxiliary is empty, so there is nothing to compare; name a source there, or use --auxiliary PATH"
        )
    weights = {name: source.weight for name, source in config.data.auxiliary.items()}
    simple = [StrategyConfig(name=name) for name in (PRIMARY_ONLY, MULTITASK)]
    found: dict[str, Candidate] = {}
    own = [] if find(config.strategy.name).trains_others else [config.strategy]
    for entry in [*simple, *own, *config.compare.strategies]:
        if find(entry.name).trains_others:
            raise InputError(
                f"compare.strategies: {entry.name} cannot be compared here, since it also trains on the validation labels and "
                "takes about a dozen runs for each seed; leave it out, and see its leaderboard (`attittud train`) instead"
            )
        strategy = completed(entry, config.strategy)
        small = replace(strategy, rank=1)  # the toy model has only two parameters
        tuned = make_strategy(small, nn.Linear(1, 1), weights=weights, seed=0).needs_auxiliary
        label = _label(strategy, completed(StrategyConfig(name=strategy.name), config.strategy))
        found.setdefault(label, Candidate(label, strategy, tuned))
    return list(found.values())


def _label(strategy: StrategyConfig, usual: StrategyConfig) -> str:
    """The name, with the settings that differ from the default."""
    words = [strategy.name]
    for name in (entry.name for entry in fields(strategy)):
        value = getattr(strategy, name)
        if isinstance(value, EtaWeights):
            text = ",".join(f"{weight:g}" for weight in (value.neutral, value.helpful, value.harmful))
        else:
            text = f"{value:g}" if isinstance(value, float) else str(value)
        words += [f"{name}={text}"] if value != getattr(usual, name) else []
    return " ".join(words)


def variants(strategy: StrategyConfig, settings: CompareConfig, *, tuned: bool) -> list[Variant]:
    """All tries of a strategy. A strategy without a meaningful weight (`tuned` is False) is tuned in the other settings alone."""
    weights = sorted(set(settings.weights)) if tuned else [1.0]
    fixed = strategy.primary_weight is not None or not find(strategy.name).tunes_primary_weight
    space = {path: values for path, values in settings.space.items() if not (fixed and path == PRIMARY_WEIGHT)}
    return [Variant(weight, changes) for weight in weights for changes in _draws(space, settings.draws)]


def _draws(space: Mapping[str, Sequence[str]], count: int) -> list[tuple[str, ...]]:
    """Return the first value of every setting, then random combinations, none twice, in which every value has its turn.

    They depend on the space only, so strategies with the same space try the same combinations.
    """
    wanted = min(count, math.prod(len(set(values)) for values in space.values()))
    columns = [_turns(path, values) for path, values in space.items()]
    found: dict[tuple[str, ...], None] = {}
    while len(found) < wanted:
        found[tuple(f"{path}={next(column)}" for path, column in zip(space, columns, strict=True))] = None
    return list(found)


def _turns(path: str, values: Sequence[str]) -> Iterator[str]:
    """Return the first value, the others in random order, then all of them again and again: few draws see most values."""
    order, rest = random.Random(mix("space", path)), list(values[1:])
    yield values[0]
    while True:
        order.shuffle(rest)
        yield from rest
        rest = list(values)


def planned(config: Config, taking_part: Sequence[Candidate]) -> tuple[int, int]:
    """The number of runs that tune the strategies and compare them at equal steps, and the number at equal seconds."""
    settings = config.compare
    tries = sum(len(variants(one.strategy, settings, tuned=one.tuned)) - 1 for one in taking_part)
    every = len(taking_part) * settings.seeds
    # Without a budget multitask sets the time, so its runs at equal seconds are those at equal steps.
    again = every if settings.budget else every - settings.seeds
    return tries * settings.tuning_seeds + every, again if settings.equal == "both" else 0


def job(config: Config, candidate: Candidate, variant: Variant, budget: Budget) -> Config:
    """The configuration of a run."""
    training, weight = config.training, candidate.strategy.auxiliary_weight * variant.weight
    phases = {
        name: replace(getattr(training, name), steps=steps, epochs=None)
        for name, steps in vars(budget).items()
        if steps
    }
    strategy = replace(candidate.strategy, auxiliary_weight=weight)
    return changed(replace(config, strategy=strategy, training=replace(training, **phases)), variant.changes)


def run_dir(folder: Path, candidate: Candidate, variant: Variant, budget: Budget, seed: int) -> Path:
    """Return the folder of a run; its path has everything that defines the run, so changed settings find reusable runs."""
    tuned = [f"weight-{variant.weight:g}"] if candidate.tuned else []
    changes = [_file_name(" ".join(variant.changes))] if variant.changes else []
    steps = f"steps-{budget.guided}-{budget.finetune}"
    return folder.joinpath("runs", _file_name(candidate.label), *tuned, *changes, steps, f"seed-{seed}")


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.,=-]+", "-", text)
