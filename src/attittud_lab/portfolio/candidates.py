"""The strategies that a portfolio tries, and how each of them changes a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch import nn

from attittud_lab.config.schema import CandidateConfig, Config, PhaseConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import can_share, share_head
from attittud_lab.errors import InputError, listed
from attittud_lab.strategies import completed, find, make_strategy
from attittud_lab.training.train import phase_names

PRIMARY_ONLY = "primary_only"
"""The candidate that is never left out: the worth of the auxiliary data is measured against it."""
_IN_WORDS = ("auxiliary_weight", "head", "sources")
"""Settings that a label names in words of its own."""


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
    alone = named(CandidateConfig(name=PRIMARY_ONLY), config)
    if not data.auxiliary:
        return [alone]
    strategies = config.portfolio.candidates
    if strategies is None:
        strategies = default_strategies(data)
    by_label = {alone.label: alone}
    for strategy in strategies:
        candidate = named(strategy, config)
        _check(candidate, data)
        by_label.setdefault(candidate.label, candidate)
    return list(by_label.values())


def default_strategies(data: Prepared) -> list[CandidateConfig]:
    """Return the strategies that are tried besides primary_only where a job names none.

    A source that predicts the primary classes is tried with the primary output layer and with one
    of its own. Several sources are also tried each alone.
    """
    shares = any(can_share(task, data.primary) for task in data.auxiliary.values())
    # With "shared", sources of other classes still get a layer of their own (see `data_for`).
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
    usual = completed(CandidateConfig(name=entry.name), config.strategy)  # nothing else is set
    words = [strategy.name]
    if strategy.auxiliary_weight != 1:
        words = [f"{strategy.name} {strategy.auxiliary_weight:g}"]
    if strategy.head == "own":
        words.append("own head")
    if strategy.sources is not None:
        words.append(f"only {' + '.join(strategy.sources)}")
    for setting in fields(strategy):
        value = getattr(strategy, setting.name)
        if setting.name not in _IN_WORDS and value != getattr(usual, setting.name):
            words.append(f"{setting.name}={value}")
    return PortfolioCandidate(", ".join(words), strategy)


def _check(candidate: PortfolioCandidate, data: Prepared) -> None:
    """Refuse a candidate that names unknown sources, or that a portfolio cannot train. The strategy
    is built for a toy model, which shows what it can do.
    """
    strategy = candidate.strategy
    where = f"portfolio.candidates: {candidate.label}"
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
        raise InputError(
            f"{where}: is for single runs, which keep their training labels; "
            "name other strategies; simple learners have the use translated"
        )
    if find(strategy.name).trains_others:
        raise InputError(f"{where}: cannot be part of a portfolio; name other strategies")
    weights = dict.fromkeys(strategy.sources or data.auxiliary, 1.0)
    built = make_strategy(replace(strategy, rank=1), nn.Linear(1, 1), weights=weights, seed=0)
    problem = None
    if not built.resumable:
        problem = "cannot stop and continue later"
    elif not built.trains_head:
        problem = "trains no output layer"
    if problem is not None:
        raise InputError(f"{where}: {problem}, which a portfolio needs; name another strategy")


def data_for(candidate: PortfolioCandidate, data: Prepared) -> Prepared:
    """Return the data that a candidate trains on: its sources, with the output layers that it
    chooses for them.
    """
    strategy = candidate.strategy
    tasks = {}
    for name, task in data.auxiliary.items():
        if strategy.sources is not None and name not in strategy.sources:
            continue
        if strategy.head == "data":
            tasks[name] = task
        elif strategy.head == "shared" and can_share(task, data.primary):
            tasks[name] = share_head(task, data.primary)
        else:
            tasks[name] = replace(task, shares_head=False)
    return replace(data, auxiliary=tasks)


def config_for(candidate: PortfolioCandidate, config: Config, seed: int) -> Config:
    """Return the job of a candidate, with one seed, without early stopping or a choice of the best
    step within a run.
    """
    phases: dict[str, Any] = {}
    for name in phase_names(config):
        phase: PhaseConfig = getattr(config.training, name)
        if phase.schedule == "plateau":
            phase = replace(phase, schedule="constant")
        phases[name] = replace(phase, select="last", patience=None, seconds=None)
    model = config.model
    if model.weights is not None:
        model = replace(model, weights=model.weights.replace("{seed}", str(config.seed)))
    return replace(
        config,
        seed=seed,
        strategy=candidate.strategy,
        model=model,
        training=replace(config.training, **phases),
        log_layers=False,
    )


def fitted(config: Config, smallest: int, steps: Mapping[str, int], threads: int | None) -> Config:
    """Return the job with these steps (by phase) and threads, and with batches that the `smallest`
    number of training examples of a fold can fill.

    A batch stays a multiple of the parts in which gradients are accumulated. Where steps are cut,
    the warm-up is cut by the same share.
    """
    phases: dict[str, Any] = {}
    for name, count in steps.items():
        phase: PhaseConfig = getattr(config.training, name)
        batch = min(phase.primary_batch, smallest)
        batch = max(phase.accumulate, batch - batch % phase.accumulate)
        share = 1.0
        if phase.epochs is None:
            share = min(1.0, count / phase.steps)
        warmup = min(round(phase.warmup * share), count)
        phases[name] = replace(phase, steps=count, epochs=None, primary_batch=batch, warmup=warmup)
    return replace(config, training=replace(config.training, threads=threads, **phases))


def smaller_basis(entries: Sequence[PortfolioCandidate], smallest: int) -> list[PortfolioCandidate]:
    """Return the candidates, with no more examples for a basis than the smallest training fold
    has.
    """
    smaller = []
    for entry in entries:
        strategy = entry.strategy
        if strategy.basis_batch is not None:
            strategy = replace(strategy, basis_batch=min(strategy.basis_batch, smallest))
        smaller.append(replace(entry, strategy=strategy))
    return smaller
