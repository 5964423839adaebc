"""Train one candidate on one fold; a trial that is killed continues as if it had never stopped.

A trial has a folder of its own. checkpoint.safetensors is the state to continue from,
result.safetensors what a finished trial showed, and look-N.safetensors the averaged weights after
look N, if an ensemble may need them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.files import make_folder, remove
from attittud_lab.models.weights import predicts, save_weights
from attittud_lab.output.progress import Progress
from attittud_lab.portfolio.candidates import PortfolioCandidate, config_for, data_for
from attittud_lab.portfolio.folds import fold_data, make_folds
from attittud_lab.runs.folder import load_checkpoint, save_checkpoint
from attittud_lab.runs.model import WEIGHTS
from attittud_lab.training.devices import captures, choose_device, on_device
from attittud_lab.training.evaluate import figures, outputs_of
from attittud_lab.training.phase import DivergedError, Phase
from attittud_lab.training.phases import Phases
from attittud_lab.training.train import chosen_metric, conditions, load_data, new_model, phase_names

CHECKPOINT = "checkpoint.safetensors"
RESULT = "result.safetensors"
SAVED_EVERY = 2.0
"""Seconds between two checkpoints of a trial: small networks train faster than a disk writes."""


@dataclass(frozen=True)
class TrialJob:
    """Everything that another process needs to run a trial."""

    config: Config
    """The job with the planned steps and batches; `seed` is the portfolio's."""
    candidate: PortfolioCandidate
    fold: int | None
    """The fold that is held out; None trains on all labels, without looks."""
    until: int
    """The step after which the trial ends, counted over all phases: the last one for a fold, the
    best one for a trial on all labels.
    """
    folder: Path
    keeps: bool = False
    """Whether the weights of every look are kept."""


@dataclass(frozen=True)
class TrialResult:
    """What a trial showed."""

    steps: int
    seconds: float
    diverged: str | None
    outputs: list[Tensor]
    """Outputs for the held-out examples at each look, n x classes."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    """Logged steps, for a trial on all labels."""


def look_steps(config: Config) -> list[int]:
    """Return the steps after which a trial is evaluated, counted over all phases."""
    total = sum(phase_lengths(config).values())
    looks = min(config.portfolio.looks, total)
    return [max(1, round(total * number / looks)) for number in range(1, looks + 1)]


def second_phase(config: Config) -> int:
    """Return the number of the first look of the second phase, counted from 0; the number of looks
    if there is one phase alone.
    """
    first = next(iter(phase_lengths(config).values()))
    return sum(step <= first for step in look_steps(config))


def phase_lengths(config: Config) -> dict[str, int]:
    """Return the steps of each phase."""
    return {name: getattr(config.training, name).steps for name in phase_names(config)}


def look_file(folder: Path, look: int) -> Path:
    """Return the file of the averaged weights after a look, counted from 0."""
    return folder / f"look-{look}.safetensors"


def run_trial(
    job: TrialJob, data: Prepared | None = None, progress: Progress | None = None
) -> TrialResult:
    """Run a trial, from its last checkpoint if there is one; a finished trial is only read."""
    if finished(job):
        return stored(job)
    make_folder(job.folder)
    device = choose_device(job.config.device)
    data = on_device(data or load_data(job.config, pooled=True), device)
    diverged = None
    with conditions(job.config, data, device):
        trial = _Trial(job, data, device)
        try:
            trial.run(progress or Progress())
        except DivergedError as error:
            diverged = str(error)
        result = trial.result(diverged)
        # The phases refer to the trial. Without this circle its memory is free at once.
        trial.phases.phases = ()
    if device.type == "cuda":
        del trial
        gc.collect()  # graphs hold as much memory as a step needs
    save_checkpoint(job.folder / RESULT, vars(result))
    remove(job.folder / CHECKPOINT)
    return result


def finished(job: TrialJob) -> bool:
    """Whether a trial has a result."""
    return (job.folder / RESULT).exists()


def stored(job: TrialJob) -> TrialResult:
    """Return the stored result of a finished trial."""
    return TrialResult(**load_checkpoint(job.folder / RESULT))


class _Trial:
    """A trial from the step that its checkpoint has."""

    def __init__(self, job: TrialJob, pooled: Prepared, device: torch.device) -> None:
        """Build the model and its phases, and read the checkpoint, if there is one. `pooled` are
        the data of all folds. The number of torch's threads is set for the whole process.
        """
        self.job = job
        self.device = device
        folds = make_folds(pooled, job.config.portfolio, mix(job.config.seed, "folds"))
        self.data = data_for(job.candidate, fold_data(pooled, folds, job.fold))
        seed = job.config.seed
        if job.fold is not None:
            seed = mix(seed, "fold", job.fold)
        self.config = config_for(job.candidate, job.config, seed)
        self.model = new_model(self.config, self.data, device)
        torch.set_num_threads(self.config.training.threads or 1)
        self.outputs: list[Tensor] = []
        """The outputs of each look so far, as in a `TrialResult`."""
        self.lines: list[dict[str, Any]] = []
        self.saved = time.monotonic()
        """When the last checkpoint was written."""
        phases = []
        start = 0
        for name, steps in phase_lengths(self.config).items():
            phases.append(self.phase(name, start))
            start += steps
        self.phases = Phases(self.model, phases)
        self.path = job.folder / CHECKPOINT
        if self.path.exists():
            saved = load_checkpoint(self.path)
            self.phases.load_state_dict(saved, self.path)
            self.outputs = saved["outputs"]
            self.lines = saved["lines"]

    def phase(self, name: str, start: int) -> Phase:
        """Build the phase that begins after step `start`."""
        config = self.config
        data = self.data
        looks: set[int] = set()
        if self.job.fold is not None:
            # Counted within the phase. It never comes to the looks of other phases.
            looks = {step - start for step in look_steps(config)}
        return Phase(
            name,
            config,
            data,
            self.model,
            self.device,
            chosen_metric(config, data, None),
            captured=captures(config, data, self.device),
            judges=data.primary.examples,  # the held-out examples must not help to train
            looks=looks,
            measure=self.look,
            window=config.portfolio.averaging * sum(phase_lengths(config).values()),
        )

    def run(self, progress: Progress) -> None:
        """Train to the step `until` of the job. A trial on all labels then writes its weights, or
        counts as diverged if they are not finite.
        """
        for phase in self.phases.run(self.record, self.checkpoint, progress, self.job.until):
            name = phase.name
        if self.job.fold is None:
            if not all(bool(tensor.isfinite().all()) for tensor in self.model.parameters()):
                raise DivergedError(
                    f"training diverged in phase {name}: weights are not finite; lower its lr"
                )
            save_weights(self.job.folder / WEIGHTS, self.model.state_dict())

    def look(self) -> dict[str, float]:
        """Predict the held-out examples, keep the outputs, and return their figures.

        The phase calls this at each look, when the model has its averaged weights. The weights are
        written if an ensemble may need them.
        """
        examples = self.data.validation
        assert examples.targets is not None
        if self.job.keeps:
            state = self.model.state_dict()
            weights = {name: tensor for name, tensor in state.items() if predicts(name)}
            save_weights(look_file(self.job.folder, len(self.outputs)), weights)
        self.outputs.append(outputs_of(self.model, examples, self.device, head="primary"))
        return figures(self.data.primary, self.outputs[-1], examples.targets.cpu())

    def record(self, values: Mapping[str, Any]) -> None:
        """Keep the values of a logged step, if this is a trial on all labels."""
        if self.job.fold is None:
            self.lines.append({"phase": self.phases.current.name, **values})

    def result(self, diverged: str | None) -> TrialResult:
        """Return what the trial showed; `diverged` says how it ended early."""
        phases = self.phases.progress
        steps = sum(phase["steps"] for phase in phases)
        seconds = sum(phase["seconds"] for phase in phases)
        return TrialResult(steps, seconds, diverged, self.outputs, self.lines)

    def checkpoint(self) -> None:
        """Write the state to continue from, unless that was done a moment ago."""
        if time.monotonic() - self.saved >= SAVED_EVERY:
            state = {"outputs": self.outputs, "lines": self.lines}
            save_checkpoint(self.path, self.phases.state_dict() | state)
            self.saved = time.monotonic()
