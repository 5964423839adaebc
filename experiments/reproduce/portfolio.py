"""`strategy: portfolio` on four superclasses of MultiCifar100 that had no part in the search, apart
from the paper's table.

A superclass has two models from the same trials: `ensemble`, the mean of networks of the folds, and
`single`, the winner trained once more on all labels. Both are the product's. Trials lie in a folder
until the line of their superclass is written, so a command that was stopped goes on from there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.files import read_json, write_json
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Here, in_this_process
from attittud_lab.placing.job import Job as Call
from attittud_lab.placing.processes import in_processes
from attittud_lab.portfolio import run as portfolio
from attittud_lab.portfolio.trial import TrialJob, TrialResult
from attittud_lab.runs.result import RunResult
from attittud_lab.training.devices import choose_device, on_device
from attittud_lab.training.train import load_data
from experiments.reproduce.experiments import EXPERIMENTS, declared
from experiments.reproduce.results import Job, Results
from experiments.reproduce.run import inputs, read_part
from experiments.reproduce.runner import Outcome
from experiments.reproduce.trials import Trials

NAME, TABLE = "multicifar100-portfolio", "table2-multicifar100"
ABOUT = "strategy: portfolio on four superclasses of MultiCifar100, apart from the table"
OTHERS = ("fish", "household_furniture", "large_omnivores_and_herbivores", "small_mammals")
"""The next superclass in alphabetical order after each of those of the search."""
FINALS = ("ensemble", "single")
"""The first one needs the weights of every look, so the second one finds all of its trials."""


class _OutOfTimeError(Exception):
    """The budget is spent; what has been trained is kept."""


class _Named(Progress):
    """Says which superclass a line is about: several of them take turns."""

    def __init__(self, name: str, progress: Progress) -> None:
        self._name, self._progress = name, progress

    def say(self, text: str) -> None:
        self._progress.say(f"{self._name}: {text}")


class _Timed(Trials):
    """Shared trials that stop when the time is over and remember how long all calls took
    together.
    """

    def __init__(self, folder: Path, data: Prepared, deadline: float | None) -> None:
        super().__init__(folder, data)
        self._deadline, self._path = deadline, folder / "seconds.json"
        folder.mkdir(parents=True, exist_ok=True)
        self._began = time.time() - (read_json(self._path) if self._path.exists() else 0.0)

    @property
    def passed(self) -> float:
        return time.time() - self._began

    def one(self, job: TrialJob) -> TrialResult:
        if self._deadline is not None and time.time() > self._deadline:
            raise _OutOfTimeError
        found = super().one(job)
        write_json(self._path, self.passed)
        return found


def run_portfolios(
    data: Path | None,
    *,
    configs: Path,
    results: Path,
    work: Path,
    progress: Progress,
    overrides: Sequence[str],
    quick: bool = False,
    budget: float | None = None,
    only: Sequence[str] = (),
    side_by_side: int = 1,
    workers: int = 1,
) -> Outcome:
    """Run what is missing, one superclass in each process; no trial begins after `budget`
    seconds.
    """
    deadline = None if budget is None else time.time() + budget
    folder, settings = inputs(
        TABLE, EXPERIMENTS[TABLE], data, None, work if quick else None, overrides
    )
    parts = EXPERIMENTS[TABLE].parts(folder)
    every = (
        list(parts)[-1:] if quick else declared(OTHERS, list(parts), folder)
    )  # made-up data have other names
    for part in only:
        if part not in every:
            raise InputError(f"--part {part}: there is no such part; {NAME} has {', '.join(every)}")
    calls = []
    for part in only or every:
        config = read_part(configs, (f"{NAME}.yaml", parts[part][1]), settings)
        job = Job(NAME, part, f"portfolio/seed-{config.seed}", config)
        calls.append(Call(part, _work, (job, results, work, side_by_side, deadline)))
    with in_processes(workers) if workers > 1 else in_this_process() as place:
        found = {call.name: done for call, done in place.run(calls, progress)}
    names = [call.name for call in calls]
    finished = [name for name in names if found[name]]
    return Outcome(
        finished, [name for name in names if not found[name]], [results / f"{NAME}.jsonl"]
    )


def _work(
    here: Here, job: Job, results: Path, work: Path, side_by_side: int, deadline: float | None
) -> bool:
    """Write the line of a superclass, unless it is there; False where time is over or another
    process is at it.
    """
    kept = Results(results, work / "locks", side_by_side)
    if kept.find(job) is not None:
        return True
    if not kept.claim(job):
        return False
    try:
        _both(_Named(job.part, here.progress), job, kept, work / NAME / job.part, deadline)
    except _OutOfTimeError:
        return False
    finally:
        kept.release(job)
    return True


def _both(
    progress: Progress, job: Job, kept: Results, folder: Path, deadline: float | None
) -> None:
    """Train both models of a superclass and write its line."""
    config, trials_folder = job.config, folder / "trials"
    data = on_device(load_data(config, pooled=True), choose_device(config.device))
    trials = _Timed(trials_folder, data, deadline)
    found, about = dict[str, RunResult](), dict[str, Any]()
    for final in FINALS:
        own = replace(config, portfolio=replace(config.portfolio, final=final))
        found[final] = portfolio.run(
            own, folder / final, data=data, progress=progress, execute=trials.execute
        )
        about[final] = _facts(found[final], folder / final)
    kept.keep(job, folder / "single", found["single"], trials.passed, portfolio=about)
    shutil.rmtree(trials_folder)


def _facts(result: RunResult, folder: Path) -> dict[str, Any]:
    """What a line keeps about one of the models."""
    about = read_json(folder / "leaderboard.json")
    networks = about["networks"]
    last = sum(phase["steps"] for phase in result.plain()["phases"][1:]) / sum(
        networks["plan"]["steps"].values()
    )
    tried = {
        row["label"]: {name: row.get(name) for name in ("score", "loss", "steps")}
        for row in about["candidates"]
    }
    return {
        "validation": result.validation,
        "test": result.test,
        "labels": about["labels"],
        "runs": round(networks["runs"] + last, 3),
        "rungs": networks["rungs"],
        **{name: about["final"][name] for name in ("winner", "picks")},
        **{name: about[name] for name in ("chance", "worth", "model")},
        "candidates": tried,
    }
