"""Seconds per step: what a strategy costs, and which runs were timed while the machine was busy with something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median_low

from attittud_lab.runs.result import RunResult

SPREAD = 2.0
"""Runs of the same work take times that differ by less than this factor, if nothing else is going on."""


def seconds_per_step(result: RunResult) -> float:
    """Of the guided phase, without evaluations."""
    (guided,) = (phase for phase in result.phases if phase["name"] == "guided")
    return float(guided["seconds"] / guided["steps"])


def costs(results: Iterable[RunResult]) -> tuple[float, float]:
    """Seconds of a guided step, and of all of fine-tuning, of runs of the same work.

    Medians, of two in the middle the lower: other work on the machine makes a run slower, never faster.
    """
    runs = list(results)
    finetune = [[phase["seconds"] for phase in run.phases if phase["name"] == "finetune"] for run in runs]
    return median_low(map(seconds_per_step, runs)), median_low(sum(seconds) for seconds in finetune)


def slow(runs: Mapping[Path, RunResult]) -> dict[Path, float]:
    """Of runs of the same work those whose steps took more than `SPREAD` times as long as the fastest one's, and the factor."""
    found = {path: seconds_per_step(result) for path, result in runs.items()}
    fastest = min(found.values(), default=0.0)
    return {path: seconds / fastest for path, seconds in found.items() if seconds > SPREAD * fastest > 0}
