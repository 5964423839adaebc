"""Forecast how long the networks of a portfolio take, and cut the plan where that is longer than
allowed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

import torch

from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.files import read_json, write_json
from attittud_lab.output.progress import parse_duration
from attittud_lab.portfolio.candidates import PRIMARY_ONLY, PortfolioCandidate, config_for, data_for
from attittud_lab.portfolio.trial import look_steps, phase_lengths
from attittud_lab.runs.result import typed
from attittud_lab.training.first_steps import FirstSteps, first_steps
from attittud_lab.training.phase import DivergedError

SHORTEST = 0.25
"""Steps are cut to this share before candidates are left out. Beside simple candidates networks
are not trained for less.
"""
MEASURING = 0.25
"""First steps are timed for no longer than this share of the time, about."""
FEWEST = 2
"""A plan keeps at least so many candidates: the first one is primary_only."""
ON_CPU = "30m"
_ROUNDING = 1e-9
"""A plan that fills its budget exactly may exceed it by rounding, which costs no candidate."""


@dataclass(frozen=True)
class Plan:
    """What the measured times decided, once: a continued run reads the plan again."""

    steps: dict[str, int]
    """Steps of each phase."""
    candidates: list[str]
    """Empty if the budget leaves too few steps for any beside simple candidates."""
    threads: int
    runs: int
    """How many full runs all trials and the final training take together, about."""
    seconds: float
    """The forecast."""
    left_out: list[str] = field(default_factory=list)
    decided: str = ""
    """What the budget changed, in words; empty if it was enough."""

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Plan | None:
        if not path.exists():
            return None
        try:
            return cls(**typed(cls, read_json(path)))
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{path}: is damaged, or was not written by a portfolio ({error}); start over with --fresh"
            ) from None


def measure(
    entries: Sequence[PortfolioCandidate],
    config: Config,
    data: Prepared,
    limit: float | None = None,
    least: int = FEWEST,
) -> dict[str, FirstSteps]:
    """Time the first steps of every candidate on the data of a fold. If that takes more than a
    quarter of `limit` seconds, the candidates after the first `least` ones are not timed.

    A candidate that diverges in these steps gets the times of the first one; its trials will show
    whether it also diverges on the folds. primary_only, which comes first, must not diverge.
    """
    timed: dict[str, FirstSteps] = {}
    threads = config.training.threads or 1
    began = time.monotonic()
    for number, entry in enumerate(entries):
        used = time.monotonic() - began
        if limit is not None and number >= least and used > MEASURING * limit:
            break
        settings = config_for(entry, config, config.seed)
        entry_data = data_for(entry, data)
        judges = entry_data.primary.examples
        try:
            timed[entry.label] = first_steps(settings, entry_data, threads, judges)
        except DivergedError as error:
            if entry.alone:
                raise InputError(
                    f"{PRIMARY_ONLY}, with which everything is compared: {error}"
                ) from None
            timed[entry.label] = timed[entries[0].label]
    return timed


def expected_runs(count: int, folds: int, config: Config) -> int:
    """Return how many full runs `count` candidates take on all folds and in the final training."""
    settings = config.portfolio
    on_all_labels = 0
    if settings.final == "single":
        on_all_labels = 1
    elif settings.members == "refit":
        on_all_labels = count
    return count * folds + on_all_labels


def plan(
    entries: Sequence[PortfolioCandidate],
    config: Config,
    folds: int,
    timed: Mapping[str, FirstSteps],
    limit: float | None,
    *,
    optional: bool = False,
) -> Plan:
    """Fit candidates into a budget in seconds: fewer steps first, then fewer candidates, then fewer
    steps again. primary_only is never left out, unless networks are `optional` because simple
    candidates can make the model, and the share of the steps falls below `SHORTEST`.

    The forecast of a share s of the steps, with the means over the candidates, is R · (t_setup +
    t_evaluations + s · t_steps), with R of `expected_runs` and the times of `timed`. It is linear
    in s, so the share that fits into the budget follows from its values at s = 0 and s = 1.
    """
    lengths = phase_lengths(config)
    looks = len(look_steps(config))
    # In the first candidate that is timed, libraries are loaded, too.
    setup = min(times.setup for times in timed.values())

    def needed(count: int, share: float) -> float:
        """Return the seconds of the first `count` candidates with a share of the steps."""
        some = [timed[entry.label] for entry in entries[:count]]
        run = setup + fmean(times.of_run(lengths, looks, share) for times in some)
        return run * expected_runs(count, folds, config)

    def fitting_share(count: int, seconds: float) -> float:
        """Return the share of the steps, from 0.01 to 1, that takes so many seconds."""
        fixed = needed(count, 0.0)
        share = (seconds - fixed) / max(needed(count, 1.0) - fixed, 1e-9)
        return min(1.0, max(0.01, share))

    count = len(timed)  # candidates that were not timed are left out
    share = 1.0
    if limit is not None and needed(count, share) > limit:
        share = max(SHORTEST, fitting_share(count, limit))
        while count > FEWEST and needed(count, share) > limit * (1 + _ROUNDING):
            count -= 1
        share = min(share, fitting_share(count, limit))
    if optional and share < SHORTEST * (1 - _ROUNDING):
        count = 0
    labels = [entry.label for entry in entries]
    steps = lengths
    changes = []
    if share < 1:
        steps = {name: max(1, round(length * share)) for name, length in lengths.items()}
        changes.append(f"steps are cut to {share:.0%} of the configured number")
    if count < len(entries):
        changes.append(f"candidates are left out: {', '.join(labels[count:])}")
    decided = ""
    if not count:
        decided = "the budget leaves too few steps"
    elif changes:
        decided = f"to fit into portfolio.budget, {'; '.join(changes)}"
    return Plan(
        steps=steps,
        candidates=labels[:count],
        threads=config.training.threads or 1,
        runs=expected_runs(count, folds, config),
        seconds=needed(max(count, 1), share),
        left_out=labels[count:],
        decided=decided,
    )


def allowed(
    config: Config, device: torch.device, part: float = 1.0, spent: float = 0.0
) -> float | None:
    """Return the seconds that a part of the budget allows after some are spent; None where it does
    not limit.
    """
    text = config.portfolio.budget
    if text is None:
        if device.type != "cpu":
            return None
        text = ON_CPU
    return part * max(0.0, parse_duration(text, "portfolio.budget") - spent)
