"""Share the trials of a portfolio between its two kinds of final model.

What a candidate does on a fold depends neither on the other candidates nor on the rungs, and a
trial that stops goes on later as if it had never stopped. So each trial is trained once, and every
portfolio that asks for it through `execute` gets it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attittud_lab.config.schema import to_dict
from attittud_lab.portfolio.trial import TrialJob, TrialResult, look_file, look_steps, run_trial
from attittud_lab.runs.model import WEIGHTS


class Trials:
    """Trials of one configuration and one set of data, in a folder of their own."""

    def __init__(self, folder: Path, data: Any) -> None:
        self.folder = folder
        self.data = data

    def execute(self, jobs: Sequence[TrialJob]) -> Iterator[TrialResult]:
        for job in jobs:
            yield self.one(job)

    def one(self, job: TrialJob) -> TrialResult:
        """Train a trial, or take what an earlier portfolio trained of it."""
        shared_folder = self.folder / _key(job)
        shared = replace(job, folder=shared_folder, keeps=job.fold is not None)
        result = run_trial(shared, self.data)
        job.folder.mkdir(parents=True, exist_ok=True)
        if job.fold is None:
            _link(shared_folder / WEIGHTS, job.folder / WEIGHTS)
            return result
        looks = sum(step <= job.until for step in look_steps(job.config))
        if job.keeps:
            for look in range(looks):
                _link(look_file(shared_folder, look), look_file(job.folder, look))
        return _until(result, job)


def _key(job: TrialJob) -> str:
    """A name for everything that a trial depends on."""
    settings = job.config.portfolio
    decisive = [
        settings.folds,
        settings.one_split_above,
        settings.averaging,
        settings.looks,
        job.fold,
    ]
    until = job.until if job.fold is None else None
    text = json.dumps([to_dict(job.candidate.strategy), decisive, until])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _until(result: TrialResult, job: TrialJob) -> TrialResult:
    """What a trial would have returned that stops after `job.until` steps."""
    done = min(result.steps, job.until)
    share = done / result.steps if result.steps else 1.0
    looks = sum(step <= done for step in look_steps(job.config))
    return replace(
        result, steps=done, seconds=result.seconds * share, outputs=result.outputs[:looks]
    )


def _link(source: Path, target: Path) -> None:
    if source.exists():
        target.unlink(missing_ok=True)
        os.link(source, target)
