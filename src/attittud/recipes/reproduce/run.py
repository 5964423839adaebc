"""Runs an experiment: its comparisons one after the other, as far as the time goes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from attittud.recipes.compare.observers import Runs
from attittud.recipes.compare.run import Comparison
from attittud.recipes.config import Config
from attittud.recipes.errors import InputError
from attittud.recipes.loader import load
from attittud.recipes.reproduce.experiments import EXPERIMENTS, Part
from attittud.recipes.reproduce.results import OutOfTimeError, Results
from attittud.recipes.reproduce.start import Start

# Small enough for a few seconds on a CPU. What a configuration says about its strategies stays as it is.
_QUICK = (
    "model.name=mlp",
    "model.width=8",
    "data.primary.train=100",
    "data.primary.validation=40",
    "data.subsets=2",
    "training.guided.epochs=null",
    "training.guided.steps=4",
    "training.guided.evaluations=1",
    "training.guided.warmup=0",
    "training.guided.batch_size=8",
    "training.guided.primary_batch=8",
    "training.finetune.epochs=null",
    "training.finetune.steps=2",
    "training.finetune.evaluations=1",
    "training.finetune.primary_batch=8",
    "training.precision=fp32",
    "compare.seeds=2",
    "compare.tuning_seeds=1",
    "compare.draws=1",
    "log_every=2",
    "device=cpu",
)


@dataclass(frozen=True)
class Outcome:
    """What has been done of an experiment."""

    finished: list[str]
    """Parts that are complete."""
    missing: list[str]
    """Parts for which the time was too short."""
    results: Path


def parts(name: str, data: Path, configs: Path, overrides: list[str]) -> dict[str, Config]:
    """The configurations of an experiment's comparisons, by part."""
    return {part: _config(configs, found, overrides) for part, found in EXPERIMENTS[name].parts(data).items()}


def _config(configs: Path, part: Part, overrides: list[str]) -> Config:
    file, changes = part
    if not (configs / file).exists():
        raise InputError(
            f"{configs / file}: there is no such configuration; run this in a checkout of the repository, or name its folder "
            "experiments/ by --configs"
        )
    return load(configs / file, [*changes, *overrides])


def reproduce(
    name: str,
    data: Path | None,
    *,
    configs: Path,
    results: Path,
    work: Path,
    progress: Runs,
    overrides: list[str],
    quick: bool = False,
    budget: float | None = None,
) -> Outcome:
    """Run what is missing of an experiment; `budget` are seconds in all, `work` is where run folders are made."""
    experiment = EXPERIMENTS[name]
    if quick:
        data = experiment.miniature(work)
        overrides = [*_QUICK, *experiment.quick, *overrides]
    if data is None or not data.is_dir():
        raise InputError(f"--data {data}: there is no such folder; give the one with {experiment.data}, or --quick")
    began, archive = time.monotonic(), experiment.runs_of or name
    finished: list[str] = []
    everything = parts(name, data, configs, overrides)
    start = None
    if experiment.start is not None:
        start = Start(_config(configs, experiment.start(data), overrides), work / archive / "start", progress)
    for part, found in everything.items():
        config = found
        left = None if budget is None else budget - (time.monotonic() - began)
        kept = Results(results, archive, part, left)
        if start is not None and found.model.weights is not None:
            config = replace(found, model=replace(found.model, weights=str(start.weights)))
            kept.before = partial(start.train, Results(results, archive, "start"))
        try:
            Comparison(config, work / archive / part, progress, archive=kept).run()
        except OutOfTimeError:
            break
        finished.append(part)
    return Outcome(finished, [part for part in everything if part not in finished], results / f"{archive}.jsonl")
