"""The strategies that a portfolio tries, and how each of them changes a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch import nn

from attittud_lab.config.schema import CandidateConfig, Config, PhaseConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import can_share, sharing
from attittud_lab.errors import InputError, listed
from attittud_lab.strategies import completed, find, make_strategy
from attittud_lab.training.train import phase_names

PRIMARY_ONLY = "primary_only"
"""The candidate that is never left out: the worth of the auxiliary data is measured against it."""


@dataclass(frozen=True)
class PortfolioCandidate:
    """A strategy with its settings, and its name in tables."""

    label: str
    strategy: CandidateConfig

    @property
    def alone(self) -> bool:
        """Whether it ignores the auxiliary data."""
        return self.strategy.name == PRIMARY_ONLY


def candidates(config: Config, data: Prepared) -> list[PortfolioCandidate]:
    """Return primary_only and the other candidates, in the order in which a budget keeps them.

    Each is first built for a toy model, since hours may pass before it runs.
    """
    wanted = config.portfolio.candidates
    others = default_strategies(data) if wanted is None else wanted
    found = [named(CandidateConfig(name=PRIMARY_ONLY), config)]
    for entry in others if data.auxiliary else ():
        candidate = named(entry, config)
        _check(candidate, data)
        if candidate.label not in [known.label for known in found]:
            found.append(candidate)
    return found


def default_strategies(data: Prepared) -> list[CandidateConfig]:
    """Return the strategies that are tried besides primary_only where a job names none.

    A source that predicts the primary classes is tried with both output layers, and several
    sources are also tried each alone.
    """
    shares = any(can_share(task, data.primary) for task in data.auxiliary.values())
    head: Literal["shared", "data"] = "shared" if shares else "data"
    entries = [CandidateConfig(name="multitask", head=head)]
    if shares:
        entries.append(CandidateConfig(name="multitask", head="own"))
    entries.append(CandidateConfig(name="pretrain", head=head))
    if len(data.auxiliary) > 1:
        for name in data.auxiliary:
            entries.append(CandidateConfig(name="multitask", head=head, sources=[name]))
    return entries


def named(entry: CandidateConfig, config: Config) -> PortfolioCandidate:
    """Make a candidate with the basis settings of `strategy:`, and a label that names its unusual
    settings.
    """
    strategy = completed(entry, config.strategy)
    usual = completed(CandidateConfig(name=entry.name), config.strategy)
    words = [
        strategy.name
        if strategy.auxiliary_weight == 1
        else f"{strategy.name} {strategy.auxiliary_weight:g}"
    ]
    words += ["own head"] if strategy.head == "own" else []
    words += [f"only {' + '.join(strategy.sources)}"] if strategy.sources is not None else []
    for name in (entry.name for entry in fields(strategy)):
        value = getattr(strategy, name)
        if name not in ("auxiliary_weight", "head", "sources") and value != getattr(usual, name):
            words.append(f"{name}={value}")
    return PortfolioCandidate(", ".join(words), strategy)


def _check(candidate: PortfolioCandidate, data: Prepared) -> None:
    strategy, where = candidate.strategy, f"portfolio.candidates: {candidate.label}"
    for name in strategy.sources or ():
        if name not in data.auxiliary:
            raise InputError(
                f"{where}: there is no auxiliary source {name!r}; the sources are {listed(data.auxiliary)}"
            )
    if strategy.sources == []:
        raise InputError(
            f"{where}: sources is empty; name some of {listed(data.auxiliary)}, or write null for all"
        )
    if find(strategy.name).translates:
        cure = "name other strategies; simple learners have the use translated"
        raise InputError(f"{where}: is for single runs, which keep their training labels; {cure}")
    if find(strategy.name).trains_others:
        raise InputError(f"{where}: cannot be part of a portfolio; name other strategies")
    weights = dict.fromkeys(strategy.sources or data.auxiliary, 1.0)
    made = make_strategy(replace(strategy, rank=1), nn.Linear(1, 1), weights=weights, seed=0)
    if not made.resumable or not made.trains_head:
        why = "trains no output layer" if made.resumable else "cannot stop and continue later"
        raise InputError(f"{where}: {why}, which a portfolio needs; name another strategy")


def data_for(candidate: PortfolioCandidate, data: Prepared) -> Prepared:
    """Return the data that a candidate trains on: its sources, with the output layers that it
    chooses for them.
    """
    strategy = candidate.strategy
    wanted = data.auxiliary if strategy.sources is None else strategy.sources
    tasks = {name: task for name, task in data.auxiliary.items() if name in wanted}
    if strategy.head != "data":
        shared = [
            name
            for name in tasks
            if strategy.head == "shared" and can_share(tasks[name], data.primary)
        ]
        tasks = {
            name: sharing(task, data.primary)
            if name in shared
            else replace(task, shares_head=False)
            for name, task in tasks.items()
        }
    return replace(data, auxiliary=tasks)


def config_for(candidate: PortfolioCandidate, config: Config, seed: int) -> Config:
    """Return the job of a candidate, with one seed, without early stopping or a choice of the best
    step within a run.
    """
    phases: dict[str, Any] = {
        name: _plain(getattr(config.training, name)) for name in phase_names(config)
    }
    weights = config.model.weights
    model = (
        config.model
        if weights is None
        else replace(config.model, weights=weights.replace("{seed}", str(config.seed)))
    )
    training = replace(config.training, **phases)
    return replace(
        config,
        seed=seed,
        strategy=candidate.strategy,
        model=model,
        training=training,
        log_layers=False,
    )


def _plain(phase: PhaseConfig) -> PhaseConfig:
    schedule = "constant" if phase.schedule == "plateau" else phase.schedule
    return replace(phase, select="last", patience=None, seconds=None, schedule=schedule)


def fitted(config: Config, smallest: int, steps: Mapping[str, int], threads: int | None) -> Config:
    """Return the job with these steps and threads, and with batches that the smallest training fold
    can fill.

    Where steps are cut, the warm-up is cut by the same share.
    """
    phases = dict[str, Any]()
    for name, count in steps.items():
        phase: PhaseConfig = getattr(config.training, name)
        batch = min(phase.primary_batch, smallest)
        batch = max(phase.accumulate, batch - batch % phase.accumulate)
        share = 1.0 if phase.epochs is not None else min(1.0, count / phase.steps)
        warmup = min(round(phase.warmup * share), count)
        phases[name] = replace(phase, steps=count, epochs=None, primary_batch=batch, warmup=warmup)
    return replace(config, training=replace(config.training, threads=threads, **phases))


def smaller_basis(entries: Sequence[PortfolioCandidate], smallest: int) -> list[PortfolioCandidate]:
    """Return the candidates, with no more examples for a basis than the smallest training fold
    has.
    """
    return [
        replace(
            entry,
            strategy=replace(entry.strategy, basis_batch=min(entry.strategy.basis_batch, smallest)),
        )
        if entry.strategy.basis_batch is not None
        else entry
        for entry in entries
    ]
