"""Forecast how long a portfolio takes, and cut its plan where that is longer than allowed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import torch

from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.files import read_json, write_json
from attittud_lab.output.progress import EARLY, parse_duration, time_range
from attittud_lab.portfolio.candidates import PRIMARY_ONLY, PortfolioCandidate, config_for, data_for
from attittud_lab.portfolio.choose import kept_count
from attittud_lab.portfolio.trial import look_steps, phase_lengths
from attittud_lab.runs.result import typed
from attittud_lab.training.evaluate import outputs_of
from attittud_lab.training.phase import DivergedError, Phase
from attittud_lab.training.train import conditions, new_model, phase_names

TIMED = 3
"""How many steps of each candidate are timed."""
SHORTEST = 0.25
"""Steps are cut to this share before candidates are left out."""
ON_CPU = "30m"
_ROUNDING = 1e-9
"""A plan that fills its budget exactly may exceed it by rounding, which costs no candidate."""


@dataclass(frozen=True)
class Plan:
    """What the measured times decided, once: a continued run reads the plan again."""

    steps: dict[str, int]
    """Steps of each phase."""
    candidates: list[str]
    threads: int
    runs: float
    """How many full runs all trials and the final training take together, about."""
    seconds: float
    """The forecast."""
    left_out: list[str] = field(default_factory=list)
    decided: str = ""
    """What the budget changed, in words; empty if it was enough."""
    sums: bool = False
    """Whether a sum of the best sources may join after the first rung; the forecast counts it."""
    costs: dict[str, float] = field(default_factory=dict)
    """Forecast seconds of a full run, by candidate."""

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


@dataclass(frozen=True)
class Costs:
    """Seconds of a step by candidate and phase, and seconds of a look at the held-out labels."""

    steps: Mapping[str, Mapping[str, float]]
    look: float

    def run(self, label: str, lengths: Mapping[str, int], looks: int) -> float:
        """Seconds of a full run."""
        return (
            sum(self.steps[label][name] * count for name, count in lengths.items())
            + self.look * looks
        )


def measure(
    entries: Sequence[PortfolioCandidate], config: Config, data: Prepared, device: torch.device
) -> Costs:
    """Time the first steps of every candidate on the data of a fold.

    A candidate that diverges in these steps gets the times of the first one; its trials will show
    whether it also diverges on the folds. primary_only, which comes first, must not diverge.
    """
    found: dict[str, dict[str, float]] = {}
    look = 0.0
    with conditions(config, data, device):
        for entry in entries:
            own, settings = data_for(entry, data), config_for(entry, config, config.seed)
            model = new_model(settings, own, device)
            torch.set_num_threads(config.training.threads or 1)
            phases = [
                Phase(name, settings, own, model, device, "loss", judges=own.primary.examples)
                for name in phase_names(settings)
            ]
            try:
                found[entry.label] = {phase.name: _seconds(phase, device) for phase in phases}
            except DivergedError as error:
                if entry.alone:
                    raise InputError(
                        f"{PRIMARY_ONLY}, with which everything is compared: {error}"
                    ) from None
                found[entry.label] = found[entries[0].label]
            if entry.alone:
                began = time.perf_counter()
                outputs_of(model, data.validation, device, head="primary")
                look = time.perf_counter() - began
    return Costs(found, look)


def _seconds(phase: Phase, device: torch.device) -> float:
    """Measure the seconds of a step; steps that are later replayed from a CUDA graph take less."""
    for number in range(1 + TIMED):
        phase.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if (
            number == 0
        ):  # libraries choose their kernels, and models are compiled, in the first step
            began = time.perf_counter()
    return (time.perf_counter() - began) / TIMED


def expected_runs(count: int, folds: int, config: Config, done: int = 0, spare: int = 1) -> float:
    """Count the full runs of `count` candidates, some of which stop early, and of the final
    training.

    `done` rungs are over, and only what comes after them counts. `spare` is 0 if primary_only is
    among the best after the first rung, so that it needs no place of its own.
    """
    lengths, total, alive = rung_lengths(config), 0.0, count
    for number, length in list(enumerate(lengths))[done:]:
        total += alive * length
        if number < len(lengths) - 1:
            best = kept_count(alive, config.portfolio.rungs[number].keep)
            alive = min(alive, best + (spare if number == 0 else 0))
    last = (
        1.0
        if config.portfolio.final == "single"
        else float(config.portfolio.members == "refit") * alive
    )
    return total * folds + last


def rung_lengths(config: Config) -> list[float]:
    """The share of the steps that each rung takes."""
    ends = [*(rung_share(config, rung.at) for rung in config.portfolio.rungs), 1.0]
    return [end - before for before, end in pairwise([0.0, *ends])]


def rung_share(config: Config, at: float) -> float:
    """Return the share of the steps at which a rung takes place: at the last look before it."""
    steps = look_steps(config)
    return steps[rung_look(config, at)] / steps[-1]


def rung_look(config: Config, at: float) -> int:
    """The look after which candidates stop, counted from 0."""
    looks = len(look_steps(config))
    return min(looks - 1, max(1, math.floor(at * looks + 1e-9)) - 1)


def rung_counts(config: Config) -> list[int]:
    """Return how many looks there are up to each rung; the last rung is the end of training."""
    return [
        *(rung_look(config, rung.at) + 1 for rung in config.portfolio.rungs),
        len(look_steps(config)),
    ]


def plan(
    entries: Sequence[PortfolioCandidate],
    config: Config,
    folds: int,
    costs: Costs,
    device: torch.device,
    *,
    sums: bool = False,
    part: float = 1.0,
) -> Plan:
    """Fit a portfolio into its budget: fewer steps first, then fewer candidates, then fewer steps
    again.

    primary_only is never left out. `sums`: a sum of sources may join after the first rung, as long
    as two of them are tried alone. `part` of the budget is for these candidates.
    """
    lengths, looks = phase_lengths(config), len(look_steps(config))
    seconds, runs = (limit and limit * part for limit in allowed(config, device))

    def summed(count: int) -> bool:
        return sums and sum(entry.strategy.sources is not None for entry in entries[:count]) > 1

    def runs_of(count: int) -> float:
        return expected_runs(count + summed(count), folds, config)

    def needed(count: int, share: float) -> float:
        each = (
            fmean(costs.run(entry.label, lengths, 0) for entry in entries[:count]) * share
            + costs.look * looks
        )
        return each * runs_of(count)

    count, share = len(entries), 1.0
    while runs is not None and count > 2 and runs_of(count) > runs:
        count -= 1
    if seconds is not None and needed(count, share) > seconds:
        share = max(SHORTEST, _share(needed, count, seconds))
        while count > 2 and needed(count, share) > seconds * (1 + _ROUNDING):
            count -= 1
        share = min(share, _share(needed, count, seconds))
    left_out, words = [entry.label for entry in entries[count:]], []
    if share < 1:
        words.append(f"to fit into it, steps are cut to {share:.0%} of the configured number")
    if left_out:
        words.append(f"candidates left out: {', '.join(left_out)}")
    if runs is not None and runs_of(count) > runs:
        words.append(
            f"a portfolio needs at least {count} candidates, which take about {runs_of(count):.1f} runs; to cut the steps too, "
            "give a time, such as 10m"
        )
    steps = (
        {name: max(1, round(length * share)) for name, length in lengths.items()}
        if share < 1
        else lengths
    )
    kept = [entry.label for entry in entries[:count]]
    decided = f"portfolio.budget: {'; '.join(words)}" if words else ""
    took = (runs_of(count), needed(count, share))
    by_label = {label: costs.run(label, lengths, 0) * share + costs.look * looks for label in kept}
    return Plan(
        steps, kept, config.training.threads or 1, *took, left_out, decided, summed(count), by_label
    )


def _share(needed: Callable[[int, float], float], count: int, seconds: float) -> float:
    """Return the share of the steps that fits into the budget."""
    fixed, all_steps = needed(count, 0.0), needed(count, 1.0)
    return min(1.0, max(0.01, (seconds - fixed) / max(all_steps - fixed, 1e-9)))


def allowed(config: Config, device: torch.device) -> tuple[float | None, float | None]:
    """Return the budget as seconds or as runs."""
    text = config.portfolio.budget
    if text is None:
        return (parse_duration(ON_CPU), None) if device.type == "cpu" else (None, None)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*runs?\s*", text)
    if match and float(match[1]) > 0:
        return None, float(match[1])
    try:
        return parse_duration(text), None
    except InputError:
        found = f"portfolio.budget: {text[:40]!r} is neither a time nor a number of runs above 0"
        raise InputError(f"{found}; write for example 30m, 1h30m or 12 runs") from None


def forecast(found: Plan, folds: int, at_once: int = 1) -> str:
    """Describe the plan in words, with a range of times; `at_once` trials run at the same time."""
    many = f"{len(found.candidates)} candidate strateg{'ies' if len(found.candidates) > 1 else 'y'}"
    many += ", and one more with all sources that help," if found.sums else ""
    parts = f"{folds} folds of the labels" if folds > 1 else "one split of the labels"
    runs = f"{found.runs:.0f}" if found.runs >= 5 else f"{found.runs:.1f}"
    take = "takes" if len(found.candidates) == 1 and not found.sums else "take"
    time = time_range(found.seconds / at_once, EARLY)
    return f"{many} on {parts} {take} as long as about {runs} full runs: {time}"
