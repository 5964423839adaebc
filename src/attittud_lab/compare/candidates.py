"""The strategies that take part, the settings each is tuned in, and the folders of their runs.

`run.py` trains them. The reproduction of the paper makes its runs from these functions too.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product, starmap
from pathlib import Path

from torch import nn

from attittud_lab.config.load import changed
from attittud_lab.config.schema import CompareConfig, Config, EtaWeights, StrategyConfig
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError
from attittud_lab.strategies import completed, find, make_strategy

PRIMARY_ONLY = "primary_only"
"""The baseline, from which differences are taken. It always takes part."""
MULTITASK = "multitask"
"""The simple sum of the losses, which always takes part too."""
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
    """One try: a factor on the auxiliary losses, and settings that replace the configured ones."""

    weight: float = 1.0
    changes: tuple[str, ...] = ()
    """Overrides, such as training.guided.lr=1e-3."""


@dataclass(frozen=True)
class Budget:
    """Updates of the two phases; finetune is 0 in joint training."""

    guided: int
    finetune: int = 0


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
    """Return the seeds of the runs: seed, seed + 1, ..."""
    return list(range(config.seed, config.seed + config.compare.seeds))


def tuning_seeds(config: Config) -> list[int]:
    """Return the seeds of the runs in which strategies choose their settings."""
    return seeds(config)[: config.compare.tuning_seeds]


def candidates(config: Config) -> list[Candidate]:
    """Return the strategies of a comparison.

    These are primary_only, multitask, the configured strategy (unless it is a portfolio) and the
    strategies to compare it with. Each is first tried on a toy model, since hours may pass before
    it runs.
    """
    if not config.data.auxiliary:
        raise InputError(
            "data.auxiliary is empty, so there is nothing to compare; name a source there, or use "
            "--auxiliary PATH"
        )
    weights = {name: source.weight for name, source in config.data.auxiliary.items()}
    entries = [StrategyConfig(name=PRIMARY_ONLY), StrategyConfig(name=MULTITASK)]
    if not find(config.strategy.name).trains_others:
        entries.append(config.strategy)
    entries += config.compare.strategies
    by_label: dict[str, Candidate] = {}
    for entry in entries:
        if find(entry.name).trains_others:
            raise InputError(
                f"compare.strategies: {entry.name} cannot be compared here, since it also trains on "
                "the validation labels and takes about a dozen runs for each seed; leave it out, and "
                "see its leaderboard (`attittud train`) instead"
            )
        strategy = completed(entry, config.strategy)
        small = replace(strategy, rank=1)  # the toy model has only two parameters
        tuned = make_strategy(small, nn.Linear(1, 1), weights=weights, seed=0).needs_auxiliary
        usual = completed(StrategyConfig(name=strategy.name), config.strategy)
        label = _label(strategy, usual)
        by_label.setdefault(label, Candidate(label, strategy, tuned))
    return list(by_label.values())


def _label(strategy: StrategyConfig, usual: StrategyConfig) -> str:
    """Return the name of a strategy, with the settings that differ from its usual ones."""
    words = [strategy.name]
    for entry in fields(strategy):
        value = getattr(strategy, entry.name)
        if value != getattr(usual, entry.name):
            words.append(f"{entry.name}={_setting(value)}")
    return " ".join(words)


def _setting(value: object) -> str:
    """Return the value of a setting as it stands in a label."""
    if isinstance(value, EtaWeights):
        return f"{value.neutral:g},{value.helpful:g},{value.harmful:g}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def variants(strategy: StrategyConfig, settings: CompareConfig, *, tuned: bool) -> list[Variant]:
    """Return all tries of a strategy.

    A strategy without a meaningful weight (`tuned` is False) is tuned in the other settings alone.
    """
    weights = [1.0]
    if tuned:
        weights = sorted(set(settings.weights))
    space = dict(settings.space)
    if strategy.primary_weight is not None or not find(strategy.name).tunes_primary_weight:
        space.pop(PRIMARY_WEIGHT, None)
    return list(starmap(Variant, product(weights, _draws(space, settings.draws))))


def _draws(space: Mapping[str, Sequence[str]], count: int) -> list[tuple[str, ...]]:
    """Return combinations of settings, as overrides; there are at most `count` of them, none twice.

    The first has the first value of every setting. The others are random, but every value has its
    turn. They depend on the space only, so strategies with the same space try the same
    combinations.
    """
    columns = {path: _turns(path, values) for path, values in space.items()}
    # There are no more combinations than the product of the numbers of different values.
    most = min(count, math.prod(map(len, map(set, space.values()))))
    draws: dict[tuple[str, ...], None] = {}  # a dict keeps the order and has nothing twice
    while len(draws) < most:
        draw = tuple(f"{path}={next(column)}" for path, column in columns.items())
        draws[draw] = None
    return list(draws)


def _turns(path: str, values: Sequence[str]) -> Iterator[str]:
    """Yield the first value, the others in random order, then all of them again and again.

    So few draws see most values.
    """
    order = random.Random(mix("space", path))
    rest = list(values[1:])
    yield values[0]
    while True:
        order.shuffle(rest)
        yield from rest
        rest = list(values)


def planned(config: Config, taking_part: Sequence[Candidate]) -> tuple[int, int]:
    """Return the number of runs at equal steps, with those for tuning, and at equal seconds."""
    settings = config.compare
    more_tries = 0  # tries that are not chosen; a chosen one counts among the runs of all seeds
    for candidate in taking_part:
        more_tries += len(variants(candidate.strategy, settings, tuned=candidate.tuned)) - 1
    every = len(taking_part) * settings.seeds
    at_steps = more_tries * settings.tuning_seeds + every
    if settings.equal != "both":
        return at_steps, 0
    if settings.budget:
        return at_steps, every
    # Multitask sets the time, so its runs at equal seconds are those at equal steps.
    return at_steps, every - settings.seeds


def job(config: Config, candidate: Candidate, variant: Variant, budget: Budget) -> Config:
    """Return the configuration of a run, but for its seed."""
    training = config.training
    phases = {}
    for name, steps in vars(budget).items():
        if steps:
            phases[name] = replace(getattr(training, name), steps=steps, epochs=None)
    weight = candidate.strategy.auxiliary_weight * variant.weight
    strategy = replace(candidate.strategy, auxiliary_weight=weight)
    config = replace(config, strategy=strategy, training=replace(training, **phases))
    return changed(config, variant.changes)


def run_dir(
    folder: Path, candidate: Candidate, variant: Variant, budget: Budget, seed: int
) -> Path:
    """Return the folder of a run.

    Its path has everything that defines the run, so changed settings find reusable runs.
    """
    path = folder / "runs" / _file_name(candidate.label)
    if candidate.tuned:
        path /= f"weight-{variant.weight:g}"
    if variant.changes:
        path /= _file_name(" ".join(variant.changes))
    return path / f"steps-{budget.guided}-{budget.finetune}" / f"seed-{seed}"


def _file_name(text: str) -> str:
    """Replace letters that no file name may have."""
    return re.sub(r"[^\w.,=-]+", "-", text)
