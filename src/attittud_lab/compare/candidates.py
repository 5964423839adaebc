"""Which strategies take part, what they are called, and where their runs lie."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from attittud_lab.compare.variants import Variant
from attittud_lab.config.load import changed
from attittud_lab.config.schema import Config, EtaWeights, PhaseConfig, StrategyConfig
from attittud_lab.errors import InputError
from attittud_lab.strategies import find, make_strategy


@dataclass(frozen=True)
class Candidate:
    """A strategy before its auxiliary weight is tuned."""

    label: str
    strategy: StrategyConfig
    tuned: bool
    """Whether it has an auxiliary weight at all."""

    def weighted(self, weight: float) -> StrategyConfig:
        return replace(self.strategy, auxiliary_weight=self.strategy.auxiliary_weight * weight)


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


@dataclass(frozen=True)
class Steps:
    """Updates of the two phases; finetune is 0 in joint training."""

    guided: int
    finetune: int


def candidates(config: Config) -> list[Candidate]:
    """primary_only, multitask, the configured strategy and those to compare it with.

    Each is tried out on a toy first, as hours may pass before its turn.
    """
    if not config.data.auxiliary:
        raise InputError(
            "data.auxiliary is empty, so there is nothing to compare; name a source there, or use --auxiliary PATH"
        )
    wanted = [StrategyConfig(name="primary_only"), StrategyConfig(name="multitask"), config.strategy]
    found: dict[str, Candidate] = {}
    for entry in [*wanted, *config.compare.strategies]:
        strategy = _completed(entry, config.strategy)
        weights = {name: source.weight for name, source in config.data.auxiliary.items()}
        tuned = make_strategy(strategy, nn.Linear(1, 1), weights=weights, seed=0).needs_auxiliary
        label = _label(strategy, _completed(StrategyConfig(name=strategy.name), config.strategy))
        found.setdefault(label, Candidate(label, strategy, tuned))
    return list(found.values())


def _completed(entry: StrategyConfig, common: StrategyConfig) -> StrategyConfig:
    """What an entry leaves open about its basis is taken from `strategy:`, as far as its strategy allows that."""
    default, names = StrategyConfig(), find(entry.name).inherits
    left_open = [n for n in names if n not in entry.given and getattr(entry, n) == getattr(default, n)]
    return replace(entry, **{name: getattr(common, name) for name in left_open})


def _label(strategy: StrategyConfig, usual: StrategyConfig) -> str:
    """The name, and whatever is unusual."""
    words = [
        f"{entry.name}={_short(getattr(strategy, entry.name))}"
        for entry in fields(strategy)
        if getattr(strategy, entry.name) != getattr(usual, entry.name)
    ]
    return " ".join([strategy.name, *words])


def _short(value: Any) -> str:
    if isinstance(value, EtaWeights):
        return ",".join(f"{weight:g}" for weight in (value.neutral, value.helpful, value.harmful))
    return f"{value:g}" if isinstance(value, float) else str(value)


def job(config: Config, candidate: Candidate, variant: Variant, steps: Steps) -> Config:
    """The configuration of its runs."""

    def phase(settings: PhaseConfig, count: int) -> PhaseConfig:
        return replace(settings, steps=count, epochs=None) if count else settings

    training = replace(
        config.training,
        guided=phase(config.training.guided, steps.guided),
        finetune=phase(config.training.finetune, steps.finetune),
    )
    found = replace(config, strategy=candidate.weighted(variant.weight), training=training)
    return changed(found, variant.changes)


def run_dir(folder: Path, candidate: Candidate, variant: Variant, steps: Steps, seed: int) -> Path:
    """Whatever makes a run is in its path, so a changed budget, weight or list of seeds finds the runs it can keep."""
    tuned = [f"weight-{variant.weight:g}"] if candidate.tuned else []
    changed = [_file_name(" ".join(variant.changes))] if variant.changes else []
    counts = f"steps-{steps.guided}-{steps.finetune}"
    return folder.joinpath("runs", _file_name(candidate.label), *tuned, *changed, counts, f"seed-{seed}")


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.,=-]+", "-", text)
