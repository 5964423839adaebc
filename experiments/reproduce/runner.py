"""Trains the runs of plans in one process: what is missing and no other process is at, until the
time is over.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from attittud_lab.compare.candidates import Budget
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared, split_seed
from attittud_lab.output.progress import Progress
from attittud_lab.training.phase import DivergedError
from attittud_lab.training.train import load_data, phase_names, steps_of_phases
from attittud_lab.training.train import run as train
from experiments.reproduce.fingerprint import fingerprint
from experiments.reproduce.plan import Plan
from experiments.reproduce.results import Job, Results

WAIT = 0.5
"""Seconds between two looks at what other processes are doing."""
KEPT_BYTES = 1 << 30
"""With so much data in memory, the data of other parts are dropped, and read again when they are
needed.
"""


@dataclass(frozen=True)
class Outcome:
    """What has been done of some experiments."""

    finished: list[str]
    """Parts that are complete."""
    missing: list[str]
    """Parts for which the time was too short."""
    results: list[Path]

    @classmethod
    def of(cls, parts: Sequence[str], missing: Collection[str], results: list[Path]) -> Outcome:
        finished = [part for part in parts if part not in missing]
        return cls(finished, [part for part in parts if part in missing], results)


class Clock:
    """How much time there is, in seconds from now on; `seconds` None for as much as it takes."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = math.inf
        if seconds is not None:
            self._end = time.monotonic() + seconds
        self._took: list[float] = []

    def over(self) -> bool:
        """Return whether a run that takes as long as the longest one so far would not end in
        time.
        """
        # The first run of a process may have compiled its network.
        usual = self._took[1:] or self._took
        return time.monotonic() + max(usual, default=0.0) > self._end

    def took(self, seconds: float) -> None:
        self._took.append(seconds)


@dataclass
class Runner:
    """Trains runs of plans in this process."""

    results: Results
    work: Path
    progress: Progress
    clock: Clock
    share: float = 0.0  # how far down the list of parts to begin, as in `Plan.jobs`
    _data: dict[str, Prepared] = field(default_factory=dict, repr=False)
    _starts: dict[str, tuple[str, Config]] = field(default_factory=dict, repr=False)
    """By the path of their weights: the experiment and the configuration of runs that others start
    from.
    """

    def run(self, plans: Sequence[Plan]) -> Outcome:
        """Train until nothing is missing or the time is over, and say which parts are complete.
        Runs that other processes are at are waited for.
        """
        done = set[str]()
        for plan in plans:
            jobs = plan.jobs(self.results.find)
            done |= {job.fingerprint for job in jobs if self.results.find(job)}
        self.progress.comparison(sum(plan.count for plan in plans) - len(done))
        missing = self._missing(plans)
        while missing and not self.clock.over():
            job = self._next(plans)
            if job is None:
                time.sleep(WAIT)
            else:
                self._train(job, self.work / job.experiment / job.part / "runs" / job.run)
            missing = self._missing(plans)
        every = list(chain(*(plan.measured for plan in plans)))
        files = dict.fromkeys(self.results.path(plan.experiment) for plan in plans)
        return Outcome.of(every, missing, [*files])

    def _missing(self, plans: Sequence[Plan]) -> set[str]:
        self.results.read()
        return set().union(*(plan.missing(self.results.find) for plan in plans))

    def _next(self, plans: Sequence[Plan]) -> Job | None:
        """Take the most urgent run that is missing and that no other process is at."""
        for plan in plans:
            for job in plan.jobs(self.results.find, self.share):
                if self._take(job):
                    return job
        return None

    def _take(self, job: Job) -> bool:
        """Claim a run that is missing, and train what it starts from; whether both succeeded."""
        if self.results.find(job) is not None or not self.results.claim(job):
            return False
        self.results.read()  # another process may have ended it a moment ago
        if self.results.find(job) is None and self._start(job):
            return True
        self.results.release(job)
        return False

    def _train(self, job: Job, folder: Path) -> None:
        """Train a run that was claimed, and release it."""
        result: Any
        try:
            shown = self.progress.begin(f"{job.part}: {job.run}")
            is_over = (folder / "result.json").exists()
            data = None if is_over else self._prepared(job.config)
            began = time.perf_counter()
            try:
                result = train(job.config, run_dir=folder, data=data, progress=shown)
            except DivergedError as error:
                result = str(error)
            seconds = time.perf_counter() - began
            self.clock.took(seconds)
            self.results.keep(job, folder, result, seconds)
            shown.end()
        finally:
            self.results.release(job)

    def _prepared(self, config: Config) -> Prepared:
        """Read the data of a run, or take them from an earlier run with the same split."""
        key = json.dumps(
            [to_dict(config.data), split_seed(config.data, config.seed), config.model.name]
        )
        if key not in self._data:
            if sum(data.bytes for data in self._data.values()) > KEPT_BYTES:
                self._data.clear()
            self._data[key] = load_data(config, others=list(self._data.values()))
        return self._data[key]

    def steps(self, config: Config) -> Budget:
        """Return the updates of the two phases; only epochs need the data for that."""
        phases = [getattr(config.training, name) for name in phase_names(config)]
        if not any(phase.epochs for phase in phases):
            return Budget(*(phase.steps for phase in phases))
        return Budget(**steps_of_phases(config, self._prepared(config)))

    def started(self, experiment: str, start: Config, config: Config) -> Config:
        """Return a configuration whose runs start from the weights of `start`, seed by seed, if it
        starts from any.
        """
        if config.model.weights is None:
            return config
        # Named by its fingerprint, so that other settings are another start.
        folder = self.work / experiment / "start" / "runs" / "start" / fingerprint(start)
        weights = str(folder / "seed-{seed}" / "weights.safetensors")
        self._starts[weights] = experiment, start
        return replace(config, model=replace(config.model, weights=weights))

    def _start(self, job: Job) -> bool:
        """Train what a run starts from, unless it is there or the run starts from nothing; False
        where another process is at it.
        """
        if job.config.model.weights not in self._starts:
            return True
        experiment, config = self._starts[job.config.model.weights]
        folder = Path(job.config.model.weights.replace("{seed}", str(job.config.seed))).parent
        # Its line may be there without its weights, which are not committed.
        run = folder.relative_to(folder.parents[2]).as_posix()
        start = Job(experiment, "start", run, replace(config, seed=job.config.seed))
        if _made(folder):
            return True
        if not self.results.claim(start):
            return False
        if _made(folder):  # by another process, a moment ago
            self.results.release(start)
        else:
            self._train(start, folder)
        return True


def _made(folder: Path) -> bool:
    return (folder / "result.json").exists() and (folder / "weights.safetensors").exists()
