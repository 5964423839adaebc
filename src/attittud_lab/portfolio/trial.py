"""Train one candidate on one fold; a trial that is killed continues as if it had never stopped.

A trial has a folder of its own. checkpoint.safetensors is the state to continue from,
result.safetensors what a finished trial showed, and look-N.safetensors the averaged weights after
look N, if an ensemble may need them.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import mix
from attittud_lab.errors import InputError, one_line
from attittud_lab.files import make_folder
from attittud_lab.models.network import predicts, save_weights
from attittud_lab.output.progress import Progress
from attittud_lab.portfolio.candidates import PortfolioCandidate, config_for, data_for
from attittud_lab.portfolio.folds import fold_data, make_folds
from attittud_lab.runs.folder import check_like, load_checkpoint, save_checkpoint
from attittud_lab.runs.model import WEIGHTS
from attittud_lab.training.devices import captures, choose_device, on_device
from attittud_lab.training.evaluate import figures, outputs_of
from attittud_lab.training.phase import DivergedError, Phase
from attittud_lab.training.train import (
    begin_phase,
    chosen_metric,
    conditions,
    load_data,
    new_model,
    phase_names,
)

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
    """The last step, counted over all phases: the best one for a trial on all labels."""
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
    return [max(1, round(total * (number + 1) / looks)) for number in range(looks)]


def second_phase(config: Config) -> int:
    """The first look of the second phase, counted from 0."""
    first = next(iter(phase_lengths(config).values()))
    return sum(step <= first for step in look_steps(config))


def phase_lengths(config: Config) -> dict[str, int]:
    return {name: getattr(config.training, name).steps for name in phase_names(config)}


def look_file(folder: Path, look: int) -> Path:
    """The averaged weights after a look, counted from 0."""
    return folder / f"look-{look}.safetensors"


def run_trial(
    job: TrialJob, data: Prepared | None = None, progress: Progress | None = None
) -> TrialResult:
    """Run a trial, from its last checkpoint if there is one; a finished trial is only read."""
    result = stored(job)
    if result is not None:
        return result
    make_folder(job.folder)
    device = choose_device(job.config.device)
    data = on_device(pooled_data(job.config) if data is None else data, device)
    with conditions(job.config, data, device):
        trial = _Trial(job, data, device, progress or Progress())
        try:
            trial.run()
        except DivergedError as error:
            trial.diverged = str(error)
        result = trial.result()
        # they refer to the trial, which would otherwise stay in memory for a while
        trial.phases.clear()
    if device.type == "cuda":
        del trial
        gc.collect()  # graphs hold as much memory as a step needs
    outputs = torch.stack(result.outputs) if result.outputs else None
    save_checkpoint(job.folder / RESULT, vars(result) | {"outputs": outputs})
    (job.folder / CHECKPOINT).unlink(missing_ok=True)
    return result


def stored(job: TrialJob) -> TrialResult | None:
    """Return the stored result of a finished trial."""
    path = job.folder / RESULT
    if not path.exists():
        return None
    state = load_checkpoint(path)
    outputs = [] if state["outputs"] is None else list(state["outputs"])
    return TrialResult(**state | {"outputs": outputs})


_DATA: dict[str, Prepared] = {}


def pooled_data(config: Config) -> Prepared:
    """The data of a portfolio, read once in a process."""
    key = json.dumps([to_dict(config.data), config.seed, to_dict(config.model)])
    if key not in _DATA:
        _DATA.clear()
        _DATA[key] = load_data(config, pooled=True)
    return _DATA[key]


class _Trial:
    """The phases of a trial, from the step that its checkpoint has."""

    def __init__(
        self, job: TrialJob, pooled: Prepared, device: torch.device, progress: Progress
    ) -> None:
        self.job = job
        self.device = device
        self.progress = progress
        folds = make_folds(pooled, job.config.portfolio, mix(job.config.seed, "folds"))
        self.data = data_for(job.candidate, fold_data(pooled, folds, job.fold))
        seed = job.config.seed if job.fold is None else mix(job.config.seed, "fold", job.fold)
        self.config = config_for(job.candidate, job.config, seed)
        self.model = new_model(self.config, self.data, device)
        torch.set_num_threads(self.config.training.threads or 1)
        self.outputs: list[Tensor] = []
        self.lines: list[dict[str, Any]] = []
        self.finished: list[float] = []
        """Seconds of each finished phase."""
        self.diverged: str | None = None
        self.saved = time.monotonic()
        self.starts: list[int] = []
        """The step before each phase."""
        self.phases: list[Phase] = []
        start = 0
        for name, steps in phase_lengths(self.config).items():
            self.starts.append(start)
            self.phases.append(self.phase(name, start))
            start += steps
        self.path = job.folder / CHECKPOINT
        if self.path.exists():
            self.restore(load_checkpoint(self.path))

    def phase(self, name: str, start: int) -> Phase:
        """Build the phase that begins after step `start`."""
        config, data = self.config, self.data
        looks: set[int] = set()
        if self.job.fold is not None:
            looks = {step - start for step in look_steps(config)}
        return Phase(
            name,
            config,
            data,
            self.model,
            self.device,
            chosen_metric(config, data, None),
            captured=captures(config, data, self.device),
            judges=data.primary.examples,
            looks=looks,
            measure=self.look,
            window=config.portfolio.averaging * sum(phase_lengths(config).values()),
        )

    @property
    def number(self) -> int:
        """The current phase."""
        return len(self.finished)

    def run(self) -> None:
        """Train to the last step; a trial on all labels writes its weights."""
        while True:
            phase = self.phases[self.number]
            until = self.job.until - self.starts[self.number]
            begin_phase(phase)
            self.progress.phase(phase.name, min(until, phase.steps), phase.state.step)
            phase.run(self.record, self.checkpoint, self.progress.advance, until)
            if until <= phase.steps:
                break
            phase.finish()
            self.finished.append(phase.state.seconds)
        if self.job.fold is None:
            phase.finish()
            if not all(bool(tensor.isfinite().all()) for tensor in self.model.parameters()):
                raise DivergedError(
                    f"training diverged in phase {phase.name}: weights are not finite; lower its lr"
                )
            save_weights(self.job.folder / WEIGHTS, self.model.state_dict())

    def look(self) -> dict[str, float]:
        """Predict the held-out examples; the model has its averaged weights here."""
        examples = self.data.validation
        assert examples.targets is not None
        if self.job.keeps:
            state = self.model.state_dict()
            weights = {name: tensor for name, tensor in state.items() if predicts(name)}
            save_weights(look_file(self.job.folder, len(self.outputs)), weights)
        self.outputs.append(outputs_of(self.model, examples, self.device, head="primary"))
        return figures(self.data.primary, self.outputs[-1], examples.targets.cpu())

    def record(self, values: Mapping[str, Any]) -> None:
        if self.job.fold is None:
            self.lines.append({"phase": self.phases[self.number].name, **values})

    def result(self) -> TrialResult:
        state = self.phases[self.number].state
        steps = self.starts[self.number] + state.step
        seconds = sum(self.finished) + state.seconds
        return TrialResult(steps, seconds, self.diverged, self.outputs, self.lines)

    def checkpoint(self) -> None:
        if time.monotonic() - self.saved >= SAVED_EVERY:
            self.save()
            self.saved = time.monotonic()

    def save(self) -> None:
        state: dict[str, Any] = {
            "finished": self.finished,
            "lines": self.lines,
            "model": self.model.state_dict(),
            "outputs": torch.stack(self.outputs) if self.outputs else None,
            "phase": self.phases[self.number].state_dict(),
        }
        save_checkpoint(self.path, state)

    def restore(self, saved: Mapping[str, Any]) -> None:
        try:
            self.finished = saved["finished"]
            self.lines = saved["lines"]
            self.outputs = [] if saved["outputs"] is None else list(saved["outputs"])
            check_like(saved["model"], self.model.state_dict(), "model")
            self.model.load_state_dict(saved["model"])
            self.phases[self.number].load_state_dict(saved["phase"])
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            reason = f"{self.path}: the checkpoint does not fit this trial ({one_line(error, 200)})"
            raise InputError(
                f"{reason}; delete the folder of the trial, or start over with --fresh"
            ) from None
