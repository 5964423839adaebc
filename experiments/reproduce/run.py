"""From the names of experiments to plans of their runs, in one process or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attittud_lab.config.load import load
from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Lines, Progress
from attittud_lab.placing.job import Here, Job
from attittud_lab.placing.processes import in_processes
from experiments.reproduce.experiments import EXPERIMENTS, Experiment, Part, declared
from experiments.reproduce.plan import Plan
from experiments.reproduce.results import Results
from experiments.reproduce.runner import Clock, Outcome, Runner

# Small enough for a few seconds on a CPU. What a configuration says about its strategies stays as
# it is.
QUICK = (
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
CONFIGS = Path(__file__).parents[1] / "configs"


def parts(name: str, data: Path, overrides: Sequence[str]) -> dict[str, Config]:
    """Return the configurations of an experiment's comparisons, by part."""
    members = EXPERIMENTS[name].parts(data)
    return {part: read_part(files, overrides) for part, files in members.items()}


def read_part(part: Part, overrides: Sequence[str]) -> Config:
    file, changes = part
    return load(CONFIGS / file, [*changes, *overrides])


def reproduce(
    names: Sequence[str],
    data: Path | None,
    *,
    results: Path,
    work: Path,
    progress: Progress,
    overrides: Sequence[str],
    quick: bool = False,
    budget: float | None = None,
    only: Sequence[str] = (),
    seeds: int | None = None,
    side_by_side: int = 1,
    share: float = 0.0,
    model: Path | None = None,
) -> Outcome:
    """Run what is missing of some experiments, in this order.

    Several processes may do the same at once: none trains what another is training, and each waits
    for all of it.

    Args:
        names: the experiments.
        data: the folder with the data; not needed if `quick`.
        results: the folder of the results.
        work: a folder for runs and made-up data.
        progress: what the user sees.
        overrides: further settings, for all runs.
        quick: train tiny networks on made-up data.
        budget: seconds in all.
        only: the parts to run, in this order; without it all of them.
        seeds: the largest number of seeds of a part.
        side_by_side: how many processes share the device.
        share: which of several parts to begin with, in [0, 1).
        model: the folder of a text encoder.
    """
    runner = Runner(
        Results(results, work / "locks", side_by_side), work, progress, Clock(budget), share
    )
    plans: dict[str, Plan] = {}
    for name in names:
        experiment = EXPERIMENTS[name]
        if quick:
            folder, settings = made_up_inputs(experiment, work, overrides)
        else:
            folder, settings = inputs(name, experiment, data, model, overrides)
        configurations = parts(name, folder, settings)
        archive = experiment.runs_of or name
        if experiment.start is not None:
            start = read_part(experiment.start(folder), settings)
            for part, config in configurations.items():
                configurations[part] = runner.started(archive, start, config)
        selected = list(only or configurations)
        if quick and experiment.quick_parts and not only:
            selected = list(experiment.quick_parts)
        for group, searched in _searches(experiment, list(configurations), folder, quick=quick):
            plan = Plan(
                archive,
                {part: configurations[part] for part in group},
                searched,
                [part for part in selected if part in group],
                runner.steps,
                seeds,
            )
            for part in group:
                plans.setdefault(part, plan)
    for part in only:
        if part not in plans:
            raise InputError(
                f"--part {part}: there is no such part; {', '.join(names)} has {', '.join(plans)}"
            )
    ordered = dict.fromkeys(plans[part] for part in only or plans)
    return runner.run([plan for plan in ordered if plan.measured])


def _searches(
    experiment: Experiment, names: list[str], folder: Path, *, quick: bool
) -> list[tuple[list[str], list[str]]]:
    """Return the groups of parts whose settings come from one search, each with the parts on which
    the search is made.
    """
    if experiment.searched is None:
        return [([part], [part]) for part in names]
    if quick:  # made-up data have other names than those that the experiment declares
        return [(names, names[:1])]
    return [(names, declared(experiment.searched, names, folder))]


def made_up_inputs(
    experiment: Experiment, folder: Path, overrides: Sequence[str]
) -> tuple[Path, list[str]]:
    """Write made-up data below a folder. Return their folder and the settings of all parts."""
    settings = [*QUICK, *experiment.quick, *overrides]
    if experiment.encoder is not None:
        settings.append(f"model.name=hf:{experiment.encoder(folder)}")
    return experiment.miniature(folder), settings


def inputs(
    name: str,
    experiment: Experiment,
    data: Path | None,
    model: Path | None,
    overrides: Sequence[str],
) -> tuple[Path, list[str]]:
    """Return the folder with the data and the settings that all parts share."""
    settings = list(overrides)
    if data is None or not data.is_dir():
        raise InputError(
            f"--data {data}: there is no such folder; give the one with {experiment.data}, or --quick"
        )
    if experiment.encoder is not None:
        if model is None or not model.is_dir():
            problem = "is not given" if model is None else f"{model}: there is no such folder"
            raise InputError(
                f"--model {problem}; {name} needs one with a text encoder (config.json, model.safetensors and its tokenizer), or "
                "--quick"
            )
        settings.append(f"model.name=hf:{model}")
    return data, settings


def side_by_side(
    count: int, names: Sequence[str], data: Path | None, *, quiet: bool, **settings: Any
) -> Outcome:
    """Call `reproduce` in `count` processes at once: small networks leave much of a GPU idle.

    Processes take turns on a GPU unless its multi-process service (MPS) runs; then their kernels
    overlap.
    """
    jobs = []
    for number in range(count):
        arguments = (number, count, names, data, quiet, settings)
        jobs.append(Job(f"worker {number + 1}", _work, arguments))
    with in_processes(count) as place:
        outcomes: list[Outcome] = [outcome for _, outcome in place.run(jobs, Progress())]
    first = outcomes[0]
    # A part is complete if one process has seen it so.
    missing = set(first.missing).intersection(*(outcome.missing for outcome in outcomes))
    return Outcome.of(first.finished + first.missing, missing, first.results)


def _work(
    _: Here,
    number: int,
    count: int,
    names: Sequence[str],
    data: Path | None,
    quiet: bool,
    settings: dict[str, Any],
) -> Outcome:
    progress: Progress = Lines(prefix=f"{number + 1}: ")
    if quiet:
        progress = Progress()
    return reproduce(names, data, progress=progress, share=number / count, **settings)
