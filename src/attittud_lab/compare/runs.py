"""The runs of a comparison: finished ones are read from their folders, the others are trained.

`run.py` says which runs there are. The state of a comparison is in the run folders alone, so that
it can be continued.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from attittud_lab.compare.candidates import Budget, Candidate, Variant, job, run_dir
from attittud_lab.compare.content import checked
from attittud_lab.compare.words import run_name
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared, split_seed
from attittud_lab.files import read_json, write_json
from attittud_lab.models.build import files_read
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Here, Job, Place
from attittud_lab.placing.trials import Trial, results_of
from attittud_lab.runs.folder import checked_threads
from attittud_lab.runs.result import RunResult
from attittud_lab.training.phase import DivergedError
from attittud_lab.training.train import load_data, threads_of
from attittud_lab.training.train import run as train

THREADS = "threads.json"
KEPT_BYTES = 1 << 30
"""Bytes of data in memory above which the data of other splits are dropped, and read again."""


class Run(NamedTuple):
    """A run of a comparison: what is trained, with which settings, how long, with which seed."""

    candidate: Candidate
    variant: Variant
    budget: Budget
    seed: int


class Runs:
    """The runs of a comparison in its folder."""

    def __init__(self, config: Config, folder: Path, *, fresh: bool, place: Place) -> None:
        self.config = config
        self.folder = folder
        self.fresh = fresh
        self.place = place
        self.results: dict[Path, RunResult | None] = {}
        """Results by folder; None where the run diverged."""
        self.seconds: list[float] = []
        """Seconds of each run, including evaluations and set-up if it was trained now."""
        self._data: dict[str, Prepared] = {}
        """Data in memory, by split."""
        self._threads: int | None = None
        """The threads of all runs, once they are known."""

    def prepared(self, seed: int) -> Prepared:
        """Return the data of a seed; they stay in memory for other seeds with the same split."""
        config = self.config
        split = [to_dict(config.data), split_seed(config.data, seed), config.model.name]
        key = json.dumps(split)
        if key not in self._data:
            if sum(data.bytes for data in self._data.values()) > KEPT_BYTES:
                self._data.clear()
            data = load_data(config, seed, list(self._data.values()))
            self._data[key] = replace(data, parts=None)  # they cannot be handed to other processes
        return self._data[key]

    def complete(self, runs: Iterable[Run], progress: Progress) -> None:
        """Train the runs that are missing; afterwards `results` has all of them."""
        trials = {}
        for run in runs:
            path = run_dir(self.folder, *run)
            if path not in self.results and path not in trials:
                trials[path] = self._trial(run, path)
        results = results_of([*trials.values()], self.place, progress)
        for path, (result, seconds) in zip(trials, results, strict=True):
            # A job on another machine has another folder. A run that diverged has None as result.
            self.results[path] = result and replace(result, run_dir=path)
            self.seconds.append(seconds)

    def _trial(self, run: Run, path: Path) -> Trial:
        """Describe a run to the runner of trials; its data are read only when it begins."""
        config = job(self.config, run.candidate, run.variant, run.budget)
        config = replace(config, seed=run.seed)
        finished = (path / "result.json").exists() and not self.fresh
        name = run_name(run.candidate, run.variant, run.seed)
        make_job = partial(self._job, name, config, path)
        return Trial(path, finished, partial(read_one, config, path), make_job)

    def _job(self, name: str, config: Config, path: Path) -> Job:
        """Describe a run to the place that trains it."""
        data = self.prepared(config.seed)
        threads = self.threads_of(config, data)
        return Job(
            name,
            train_one,
            (config, self.fresh, threads),
            folder=path,
            data=data,
            reads=files_read(config.model, config.seed),
            threads=threads,
            device=config.device,
        )

    def threads_of(self, config: Config, data: Prepared) -> int:
        """Return the threads of all runs, which are measured once.

        A file keeps the number for a comparison that is continued.
        """
        path = self.folder / THREADS
        if config.training.threads is not None:
            return config.training.threads
        if self._threads is None and path.exists() and not self.fresh:
            self._threads = checked_threads(path, read_json(path))
        if self._threads is None:
            self._threads = threads_of(config, data)
            write_json(path, self._threads)
        return self._threads

    def result(self, run: Run) -> RunResult | None:
        """Return the result of a finished run; None where it diverged."""
        return self.results[run_dir(self.folder, *run)]


def read_one(config: Config, path: Path) -> tuple[RunResult, float]:
    """Return the result of a finished run, and the seconds of its training."""
    result = checked(train(config, run_dir=path))
    return result, result.seconds


def train_one(
    here: Here, config: Config, fresh: bool, threads: int
) -> tuple[RunResult | None, float]:
    """Train a run in the process, on the data and in the folder of the place that took the job.

    Returns its result (None if it diverged) and the seconds that it took.
    """
    began = time.monotonic()
    result = None
    with suppress(DivergedError):
        result = train(
            config,
            run_dir=here.folder,
            data=here.data,
            progress=here.progress,
            fresh=fresh,
            threads=threads,
        )
    return result, time.monotonic() - began
