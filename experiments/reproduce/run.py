"""Runs an experiment: its comparisons one after the other, as far as the time goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from attittud_lab.compare.progress import Runs
from attittud_lab.compare.run import BusyError, Comparison
from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from experiments.reproduce.claims import Claims
from experiments.reproduce.experiments import EXPERIMENTS, Part
from experiments.reproduce.results import Clock, OutOfTimeError, Results
from experiments.reproduce.start import Start

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


WAIT = 0.5
"""Seconds between two looks at what other processes are doing."""


@dataclass(frozen=True)
class Outcome:
    """What has been done of some experiments."""

    finished: list[str]
    """Parts that are complete."""
    missing: list[str]
    """Parts for which the time was too short."""
    results: list[Path]


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
    names: Sequence[str],
    data: Path | None,
    *,
    configs: Path,
    results: Path,
    work: Path,
    progress: Runs,
    overrides: list[str],
    quick: bool = False,
    budget: float | None = None,
    only: Sequence[str] = (),
    side_by_side: int = 1,
    model: Path | None = None,
) -> Outcome:
    """Run what is missing of some experiments, in this order; `budget` are seconds in all, `work` is for run folders.

    `only` are the parts to run, in this order; without it all of them. Several processes may do the same at once: none
    trains what another is training, and each waits for all of it. `side_by_side` says how many share the device. `model` is
    the folder of a text encoder.
    """
    claims, clock, shared = Claims(work / "claims"), Clock(budget), dict[str, Prepared]()
    planned: dict[str, tuple[Comparison, Results]] = {}
    left_out: set[str] = set()
    for name in names:
        experiment, settings, folder = EXPERIMENTS[name], overrides, data
        if quick:
            folder, settings = experiment.miniature(work), [*_QUICK, *experiment.quick, *overrides]
        if folder is None or not folder.is_dir():
            raise InputError(
                f"--data {folder}: there is no such folder; give the one with {experiment.data}, or --quick"
            )
        if experiment.encoder is not None:
            encoder = experiment.encoder(work) if quick else model
            if encoder is None or not encoder.is_dir():
                what = "is not given" if encoder is None else f"{encoder}: there is no such folder"
                raise InputError(
                    f"--model {what}; {name} needs one with a text encoder (config.json, model.safetensors and its tokenizer), "
                    "or --quick"
                )
            settings = [*settings, f"model.name=hf:{encoder}"]
        if quick and not only:
            left_out |= set(experiment.parts(folder)) - set(experiment.quick_parts or experiment.parts(folder))
        archive = experiment.runs_of or name
        start = None
        if experiment.start is not None:
            start = Start(
                _config(configs, experiment.start(folder), settings), work / archive / "start/runs/start", progress
            )
        for part, found in parts(name, folder, configs, settings).items():
            config, kept = found, Results(results, archive, part, clock, claims, side_by_side)
            if start is not None and found.model.weights is not None:
                config = replace(found, model=replace(found.model, weights=str(start.weights)))
                own = Results(results, archive, "start", clock, claims, side_by_side)
                kept.before = partial(start.train, own)
            comparison = Comparison(config, work / archive / part, progress, archive=kept, data=shared)
            planned.setdefault(part, (comparison, kept))
    for part in only:
        if part not in planned:
            raise InputError(f"--part {part}: there is no such part; {', '.join(names)} has {', '.join(planned)}")
    chosen = {part: planned[part] for part in only or planned if part not in left_out}
    finished = _run(chosen)
    missing = [part for part in chosen if part not in finished]
    return Outcome(finished, missing, list(dict.fromkeys(kept.path for _, kept in chosen.values())))


def _run(comparisons: dict[str, tuple[Comparison, Results]]) -> list[str]:
    """Those that are complete when it is over, or time is.

    Where other processes are at all that is left of a part, one run of a later part is made before the next look at it.
    """
    left, finished = dict(comparisons), list[str]()
    while left:
        for part, (comparison, kept) in list(left.items()):
            kept.quota = None if part == next(iter(left)) else 1
            try:
                comparison.run()
            except OutOfTimeError:
                return finished
            except BusyError:
                if kept.quota == 0:
                    break
                continue
            finished.append(part)
            del left[part]
        else:
            if left:
                time.sleep(WAIT)
    return finished
