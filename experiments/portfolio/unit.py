"""One pair and one seed: all rows, each trained and predicted by the product's own entry points.

Trials are shared. What a candidate does on a fold depends neither on the other candidates nor on the rungs, and a trial that
stops goes on later as if it had never stopped; so each is trained once, and every row of a pair and seed that asks for it
gets it (through `execute`, by which the product hands trials to other machines).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attittud_lab.config.load import load
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.portfolio import run as portfolio
from attittud_lab.portfolio.trial import TrialJob, TrialResult, look_file, look_steps, run_trial
from attittud_lab.runs.model import WEIGHTS as WEIGHTS_FILE
from attittud_lab.training.train import load_data, run

from .rows import MULTITASK, PRIMARY_ONLY, ROWS, WEIGHTS, Row, Task, reference_overrides

LEFT_OUT = "left out on purpose"


@dataclass(frozen=True)
class Unit:
    """The work of one process: lines of one pair and seed that are not there yet."""

    pair: str
    job: Path
    """The pair's job.yaml."""
    seed: int
    wanted: tuple[str, ...]
    out: Path
    scratch: Path | None = None
    deadline: float | None = None
    """By the clock of `time.time`: no further line is begun after it."""
    quick: bool = False


QUICK = ("training.guided.steps=6", "training.guided.evaluations=3", "training.guided.warmup=0", "portfolio.looks=5")


class Trials:
    """The trials of a pair and seed, in a folder of their own; `execute` of every row asks here."""

    def __init__(self, folder: Path, data: Any) -> None:
        self.folder, self.data, self.seconds = folder, data, 0.0
        self.skip: str | None = None
        """The label of a candidate that is left out on purpose."""

    def execute(self, jobs: Sequence[TrialJob]) -> Iterator[TrialResult]:
        for job in jobs:
            if job.candidate.label == self.skip:
                yield TrialResult(0, 0.0, LEFT_OUT, [])
            else:
                yield self.one(job)

    def one(self, job: TrialJob) -> TrialResult:
        settings = job.config.portfolio
        decisive = [settings.folds, settings.one_split_above, settings.averaging, settings.looks, job.fold]
        key = json.dumps([to_dict(job.candidate.strategy), decisive, job.until if job.fold is None else None])
        own = replace(
            job, folder=self.folder / hashlib.sha256(key.encode()).hexdigest()[:16], keeps=job.fold is not None
        )
        found = run_trial(own, self.data)
        job.folder.mkdir(parents=True, exist_ok=True)
        if job.fold is None:
            _link(own.folder / WEIGHTS_FILE, job.folder / WEIGHTS_FILE)
            return found
        steps = look_steps(job.config)
        if job.keeps:
            for look in range(sum(step <= job.until for step in steps)):
                _link(look_file(own.folder, look), look_file(job.folder, look))
        done = min(found.steps, job.until)
        share = done / found.steps if found.steps else 1.0
        return replace(
            found, steps=done, seconds=found.seconds * share, outputs=found.outputs[: sum(s <= done for s in steps)]
        )


def _link(source: Path, target: Path) -> None:
    if source.exists():
        target.unlink(missing_ok=True)
        os.link(source, target)


def work(unit: Unit) -> int:
    """Write the missing lines of a unit, one by one; return how many there were."""
    torch.set_num_threads(1)
    done = 0
    scratch = Path(tempfile.mkdtemp(prefix="portfolio-", dir=unit.scratch))
    try:
        maker = RowMaker(unit, scratch)
        for name in unit.wanted:
            if unit.deadline is not None and time.time() > unit.deadline:
                break
            began = time.process_time()
            found = {"pair": unit.pair, "row": name, "seed": unit.seed, **maker.make(name)}
            found["spent"] = round(time.process_time() - began, 3)
            with unit.out.open("a", encoding="utf-8") as file:  # one write, which other processes cannot divide
                file.write(json.dumps(found) + "\n")
            done += 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return done


class RowMaker:
    """Makes lines; data and trials are kept from one to the next."""

    def __init__(self, unit: Unit, scratch: Path) -> None:
        self.unit, self.scratch = unit, scratch
        config = self.config([f"seed={unit.seed}"])
        sources = config.data.auxiliary
        self.task = Task(tuple(sources), any(source.share_head for source in sources.values()))
        self.split: Any = None
        self.trials: Trials | None = None

    def config(self, overrides: Sequence[str]) -> Config:
        return load(self.unit.job, [*overrides, *(QUICK if self.unit.quick else ())])

    def make(self, name: str) -> dict[str, Any]:
        makers: dict[str, Callable[[], dict[str, Any]]] = {PRIMARY_ONLY: self.primary_only, MULTITASK: self.multitask}
        if name in makers:
            return makers[name]()
        row, _, final = name.partition("/")
        return self.portfolio(ROWS[row], final)

    def reference(self, weights: Sequence[float] | None) -> dict[str, Any]:
        config = self.config(reference_overrides(self.task, self.unit.seed, weights))
        self.split = self.split or load_data(config)
        place = self.scratch / "reference"
        result = run(config, run_dir=place, data=self.split)
        shutil.rmtree(place)
        return {
            "accuracy": percent(result.test["accuracy"]),
            "validation": percent(result.validation["accuracy"]),
            "loss": round(result.validation["loss"], 5),
            "seconds": round(result.phases[0]["seconds"], 3),
        }

    def primary_only(self) -> dict[str, Any]:
        return self.reference(None) | {"runs": 1.0}

    def multitask(self) -> dict[str, Any]:
        """The best of eight runs on validation, ties by loss."""
        tried = {}
        for weights in WEIGHTS[len(self.task.sources)]:
            tried[" ".join(f"{weight:g}" for weight in weights)] = self.reference(weights)
        chosen = max(tried, key=lambda name: (tried[name]["validation"], -tried[name]["loss"]))
        seconds = round(sum(one["seconds"] for one in tried.values()), 3)
        kept = {name: [one["validation"], one["accuracy"]] for name, one in tried.items()}
        return {**tried[chosen], "seconds": seconds, "chosen": chosen, "tried": kept, "runs": float(len(tried))}

    def portfolio(self, row: Row, final: str) -> dict[str, Any]:
        config = self.config(row.overrides(self.task, self.unit.seed, final))
        if self.trials is None:
            self.trials = Trials(self.scratch / "trials", load_data(config, pooled=True))
        self.trials.skip = PRIMARY_ONLY if row.without_primary_only else None
        place = self.scratch / "run"
        result = portfolio.run(config, place, data=self.trials.data, execute=self.trials.execute)
        about = json.loads((place / "leaderboard.json").read_text(encoding="utf-8"))
        shutil.rmtree(place)
        last = sum(phase["steps"] for phase in result.phases[1:]) / sum(about["plan"]["steps"].values())
        return {
            "accuracy": percent(result.test["accuracy"]),
            "validation": percent(result.validation["accuracy"]),
            "loss": round(result.validation["loss"], 5),
            "seconds": round(sum(phase["seconds"] for phase in result.phases), 3),
            "runs": round(about["runs"] + last, 3),
            "winner": about["final"]["winner"],
            "picks": about["final"]["picks"],
            "chance": about["chance"],
            "worth": about["worth"],
            "model": about["model"],
        }


def percent(share: float) -> float:
    return round(100 * share, 4)
