"""The runs of a comparison: finished ones are read from their folders, the others are trained.

`run.py` says which runs there are. The state of a comparison is in the run folders alone, so that
it can be continued.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from attittud_lab.compare.candidates import Budget, Candidate, Variant, job, run_dir
from attittud_lab.compare.content import checked, slow
from attittud_lab.compare.words import run_name
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared, split_seed
from attittud_lab.files import read_json, write_json
from attittud_lab.models.network import files_read
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Here, Job, Place
from attittud_lab.runs.result import RunResult
from attittud_lab.training.phase import DivergedError
from attittud_lab.training.train import load_data, threads_of
from attittud_lab.training.train import run as train

THREADS = "threads.json"
KEPT_BYTES = 1 << 30
"""Bytes of data in memory above which the data of other splits are dropped.

They are read again when they are needed.
"""


class Run(NamedTuple):
    """A run of a comparison: what is trained, with which settings, how long, with which seed."""

    candidate: Candidate
    variant: Variant
    budget: Budget
    seed: int


Work = tuple[str, tuple[str, ...], Budget]
"""What determines the time of a run: its strategy, its settings without the weight, its steps."""


class Runs:
    """The runs of a comparison in its folder."""

    def __init__(self, config: Config, folder: Path, *, fresh: bool, place: Place) -> None:
        self.config = config
        self.folder = folder
        self.fresh = fresh
        self.place = place
        self.results: dict[Path, RunResult | None] = {}
        """Results by folder; None where the run diverged."""
        self._same_work: dict[Work, list[RunResult]] = {}
        self._data: dict[str, Prepared] = {}
        self._threads: dict[str, int] = {}
        """Threads by model.

        A file keeps them, so that later runs of a continued comparison have the same number.
        """
        if not fresh and (folder / THREADS).exists():
            self._threads = dict(read_json(folder / THREADS))
        self._begun: dict[Path, Run] = {}
        self.seconds: list[float] = []
        """Seconds of the runs that were trained now, including evaluations and set-up."""

    def prepared(self, seed: int) -> Prepared:
        """Return the data of a seed; they stay in memory for the next run that has the same split."""
        key = self._split(seed)
        if key not in self._data:
            if sum(data.bytes for data in self._data.values()) > KEPT_BYTES:
                self._data.clear()
            data = load_data(self.config, seed, list(self._data.values()))
            data = replace(data, parts=None)  # they cannot be handed to other processes
            self._data[key] = data
        return self._data[key]

    def _split(self, seed: int) -> str:
        """Return a key of the data of a seed, the same for seeds that share a split."""
        config = self.config
        return json.dumps([to_dict(config.data), split_seed(config.data, seed), config.model.name])

    def complete(self, runs: Iterable[Run], progress: Progress) -> None:
        """Train the runs that are missing; afterwards `results` has all of them."""
        for finished, (result, seconds) in self.place.run(self._jobs(runs, progress), progress):
            folder = finished.folder
            assert folder is not None
            # A job on another machine has another folder.
            self._add(folder, result and replace(result, run_dir=folder))
            self.seconds.append(seconds)

    def _jobs(self, runs: Iterable[Run], progress: Progress) -> Iterator[Job]:
        """Yield the jobs of runs that have to be trained, and read the others."""
        for run in runs:
            path = run_dir(self.folder, *run)
            if path in self._begun:
                continue
            self._begun[path] = run
            config = job(self.config, run.candidate, run.variant, run.budget)
            config = replace(config, seed=run.seed)
            name = run_name(run.candidate, run.variant, run.seed)
            if (path / "result.json").exists() and not self.fresh:
                shown = progress.begin(name)
                self._add(path, checked(train(config, run_dir=path)))
                shown.end()
                continue
            data = self.prepared(run.seed)
            threads = self.threads_of(config, data)
            yield Job(
                name,
                train_one,
                (config, self.fresh, threads),
                folder=path,
                data=data,
                reads=files_read(config.model, run.seed),
                threads=threads,
                device=config.device,
            )

    def threads_of(self, config: Config, data: Prepared) -> int:
        """Return the threads of a run, the same for all runs with the same model."""
        key = json.dumps([to_dict(config.model), config.training.threads])
        if key not in self._threads:
            self._threads[key] = threads_of(config, data)
            write_json(self.folder / THREADS, self._threads)
        return self._threads[key]

    def _add(self, path: Path, result: RunResult | None) -> None:
        """Note a finished run; the ones that did not diverge are also sorted by their work."""
        self.results[path] = result
        if result is not None:
            run = self._begun[path]
            work = (run.candidate.label, run.variant.changes, run.budget)
            self._same_work.setdefault(work, []).append(result)

    def result(self, run: Run) -> RunResult | None:
        """Return the result of a finished run; None where it diverged."""
        return self.results[run_dir(self.folder, *run)]

    def slow(self) -> dict[str, float]:
        """Return runs that were much slower than others with the same work, the slowest first.

        They are named by their path in the folder of the comparison; the values are factors.
        """
        factors: dict[Path, float] = {}
        for results in self._same_work.values():
            factors |= slow(results)
        slowest_first = sorted(factors, key=lambda path: -factors[path])
        return {str(path.relative_to(self.folder)): factors[path] for path in slowest_first}


def train_one(
    here: Here,
    config: Config,
    fresh: bool,
    threads: int,
) -> tuple[RunResult | None, float]:
    """Train a run where it takes place.

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
