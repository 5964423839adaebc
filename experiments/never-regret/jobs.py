"""The jobs of the suite, and one job: seconds per step of a pair's strategies, or one training run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch

from .pairs import PAIRS, Pair
from .strategies import AUTO, Entry, entries
from .train import AUXILIARY_BATCH, CHECKS, JUDGES, PRIMARY_BATCH, WARM, Check, best, learning_rate, run

TIMED_STEPS = 60
REPEATS = 3
QUICK_STEPS = 20


@dataclass(frozen=True)
class Job:
    """One training run. Rows that are cheaper than `auto` go on for as long as it would take."""

    pair: str
    entry: str
    seed: int
    steps: int
    equal_seconds: int
    """Steps in the seconds that `steps` of `auto` take."""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.pair, self.entry, self.seed


@cache
def entries_of(pair: str) -> dict[str, Entry]:
    return entries(PAIRS[pair].sources)


def settings(pair: Pair) -> dict[str, Any]:
    """All that a result of the pair depends on, except for the code."""
    return {
        "model": pair.model,
        "optimizer": pair.optimizer,
        "learning_rate": learning_rate(pair),
        "steps": pair.steps,
        "entries": list(entries_of(pair.name)),
        "primary_batch": PRIMARY_BATCH,
        "auxiliary_batch": AUXILIARY_BATCH,
        "checks": CHECKS,
        "judges": JUDGES,
        "warm": WARM,
    }


def clock(pair: str, steps: int) -> tuple[str, dict[str, float]]:
    """Processor seconds per step of each entry; runs of one row that differ in a weight alone are timed once.

    Strategies take turns, so that a busy machine slows all of them; the fastest turn counts.
    """
    found: dict[str, float] = {}
    for _ in range(REPEATS):
        for name, entry in timed(pair).items():
            last = run(replace(PAIRS[pair], steps=steps), entry.make, 0, judges=entry.judges)[-1]
            found[name] = min(found.get(name, math.inf), last.seconds / last.step)
    return pair, found


def timed(pair: str) -> dict[str, Entry]:
    return {name: entry for name, entry in entries_of(pair).items() if name == clocked_as(name, pair)}


def clocked_as(entry: str, pair: str) -> str:
    """The entry that has the same time as this one."""
    row = entries_of(pair)[entry].row
    return next(name for name, e in entries_of(pair).items() if e.row == row) if row == "multitask" else entry


Clocks = dict[str, dict[str, float]]


def jobs(pairs: list[str], rows: Sequence[str], seeds: int, clocks: Clocks, steps: int | None) -> list[Job]:
    """Seed by seed, so that finished seeds have all strategies when time runs out."""
    return [
        job(pair, entry.name, seed, clocks, steps)
        for seed in range(seeds)
        for pair in pairs
        for entry in entries_of(pair).values()
        if entry.row in rows
    ]


def job(pair: str, entry: str, seed: int, clocks: Clocks, steps: int | None) -> Job:
    most = steps or PAIRS[pair].steps
    share = clocks[pair][AUTO] / clocks[pair][clocked_as(entry, pair)]
    return Job(pair, entry, seed, most, max(-(-most // CHECKS), round(most * share)))


def train(job: Job) -> dict[str, Any]:
    """One line of the results: where the run would have been stopped after equal steps, and after equal seconds."""
    entry = entries_of(job.pair)[job.entry]
    most = max(job.steps, job.equal_seconds)
    pair = replace(PAIRS[job.pair], steps=job.steps)  # others than its own in quick runs alone
    checks = run(pair, entry.make, job.seed, judges=entry.judges, steps=most)
    full = max((c for c in checks if c.step <= job.steps), key=lambda c: c.step)
    return {
        "pair": job.pair,
        "entry": job.entry,
        "seed": job.seed,
        "steps": job.steps,
        "equal_seconds": job.equal_seconds,
        "seconds": round(full.seconds, 4),
        "at_steps": brief(best(checks, job.steps)),
        "at_seconds": brief(best(checks, job.equal_seconds)),
    }


def alone(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """Run on one core: the other cores have their own runs, and the matrices are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*given)
    finally:
        torch.set_num_threads(before)


def brief(check: Check) -> dict[str, float | int]:
    return {
        name: round(value, 4) for name, value in asdict(check).items() if name != "seconds" and not math.isnan(value)
    }
