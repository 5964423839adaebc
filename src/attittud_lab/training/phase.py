"""One phase of training: steps, evaluations, the choice of the best model, and a state that can be
saved anywhere.

`phases.py` runs the phases of a run or of a trial one after the other.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Container, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attittud_lab.config.schema import Config, StrategyConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Examples, mix
from attittud_lab.errors import InputError, one_line
from attittud_lab.models.network import Network
from attittud_lab.models.parameters import check_shared, matching
from attittud_lab.strategies import Strategy, Telemetry, make_strategy
from attittud_lab.training.averaging import AveragedWeights, copied
from attittud_lab.training.devices import CapturedSteps, CudaRecorder
from attittud_lab.training.evaluate import evaluate
from attittud_lab.training.optimizer import (
    laid_out,
    learning_rate,
    make_optimizer,
    restore_optimizer,
    set_learning_rate,
)
from attittud_lab.training.sizes import auxiliary_batches, check_sizes, phase_config, phase_steps
from attittud_lab.training.streams import Streams

logger = logging.getLogger("attittud")

PLATEAU = 4
"""Evaluations without improvement after which schedule `plateau` halves the learning rate (the
paper's choice).
"""


class DivergedError(InputError):
    """The loss is no longer a finite number."""


@dataclass(frozen=True)
class _Update:
    """The figures and losses of a step, to be read later. For a captured step they are from the
    last replay.
    """

    telemetry: Telemetry
    values: Mapping[str, Tensor]


@dataclass
class PhaseState:
    """The progress of a phase."""

    step: int = 0
    best: list[float] | None = None
    """[metric, -loss] of the best evaluation so far; compared in this order."""
    best_step: int = 0
    best_values: dict[str, float] = field(default_factory=dict)
    last_values: dict[str, float] = field(default_factory=dict)
    worse: int = 0
    """Evaluations since the best one."""
    plateau: int = 0
    """Evaluations since the best one, or since the learning rate was lowered."""
    scale: float = 1.0
    """The factor to which schedule plateau has lowered the learning rate."""
    seconds: float = 0.0
    """The time of steps alone, without evaluations and checkpoints."""
    stopped: Literal["patience", "seconds"] | None = None


class Phase:
    """One phase of a job. It runs steps from the state that it has."""

    def __init__(
        self,
        name: str,
        job: Config,
        data: Prepared,
        model: Network,
        device: torch.device,
        metric: str,
        *,
        captured: bool = False,
        judges: Examples | None = None,
        looks: Container[int] | None = None,
        measure: Callable[[], dict[str, float]] | None = None,
        window: float = 0.0,
    ) -> None:
        """Build the phase `name`, `guided` or `finetune`, of a job; no step runs yet.

        `metric` chooses the best model. With `captured`, steps become CUDA graphs. `judges` are the
        examples that choose the weights of strategy auto, by default the validation examples.
        `looks` are the steps after which the model is evaluated, instead of
        training.PHASE.evaluations. `measure` returns the figures of an evaluation, by default those
        on the validation examples. With a `window`, the evaluated and the final model of the phase
        have weights averaged over this many steps.
        """
        if judges is None:
            judges = data.validation
        self.name = name
        self.job = job
        self.model = model
        self.config = phase_config(job, name)
        self.metric = metric
        self.looks = looks
        self.measure = measure or partial(evaluate, model, data.primary, data.validation, device)
        self.strategy = _checked_strategy(job, name, data, model, len(judges))
        if not self.strategy.trains_head:  # the accuracy of an untrained head means nothing
            self.config = replace(self.config, select="best")
            self.metric = "loss"
        self.steps = phase_steps(job, name, data)
        self.evaluate_every = max(1, self.steps // self.config.evaluations)
        judges_of_steps = judges if self.strategy.uses_held_out else None
        self.streams = _make_streams(
            job, name, data, model, device, judges_of_steps, captured=captured
        )
        self.captured: CapturedSteps[_Update] | None = None
        if captured:
            self.captured = CapturedSteps(CudaRecorder(device))
        self.optimizer = make_optimizer(model, self.config, device if captured else None)
        self.average: AveragedWeights | None = None
        if window:
            self.average = AveragedWeights(model, window, device)
        self.state = PhaseState()
        self.best_weights: dict[str, Tensor] | None = None

    @property
    def done(self) -> bool:
        """Whether no further step follows."""
        return self.state.step >= self.steps or self.state.stopped is not None

    def run(
        self,
        record: Callable[[Mapping[str, Any]], None],
        checkpoint: Callable[[], None],
        advanced: Callable[[int, Mapping[str, float]], None],
        until: int | None = None,
    ) -> None:
        """Run steps to the end of the phase, or to step `until`, with its evaluations.

        `record` takes a line of metrics; `checkpoint` is called in consistent states; `advanced`
        gets the number of new steps and the latest figures. Only the steps count for the seconds of
        the phase: the clock stops while anything else is done. A phase whose seconds are used up
        (training.PHASE.seconds) is evaluated once more and ends.
        """
        state = self.state
        job = self.job
        device = self.streams.device
        end = self.steps
        if until is not None:
            end = min(until, end)
        reported = state.step
        figures: dict[str, float] = {}
        started = time.perf_counter()
        while not self.done and state.step < end:
            telemetry = self.step()
            last = state.step == end
            log_due = last or state.step % job.log_every == 0
            save_due = job.checkpoint_every is not None and state.step % job.checkpoint_every == 0
            evaluation_due = self._evaluation_due(last)
            # A plain step does not wait for the device.
            if not (log_due or evaluation_due or save_due):
                continue
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            state.seconds += time.perf_counter() - started
            where = {"step": state.step, "seconds": state.seconds}
            if log_due:
                figures = self.read(telemetry)
                record(where | {"lr": self._learning_rate(state.step - 1)} | figures)
            if self.config.seconds is not None and state.seconds >= self.config.seconds:
                state.stopped = "seconds"
                evaluation_due = True
            if log_due or evaluation_due:
                advanced(state.step - reported, figures)
                reported = state.step
            if evaluation_due:
                record(where | self._evaluation_line())
            if save_due or (evaluation_due and job.checkpoint_every is not None):
                checkpoint()
            started = time.perf_counter()

    def _evaluation_due(self, last: bool) -> bool:
        """Whether the model is evaluated after the present step; `last`: it is the last one."""
        if self.looks is not None:
            return self.state.step in self.looks
        return last or self.state.step % self.evaluate_every == 0

    def _evaluation_line(self) -> dict[str, float]:
        """Evaluate as `_evaluate` does, and return a line of metrics: the validation figures and,
        with log_layers, the norms of the gradient's parts by layer.
        """
        line = {f"validation/{name}": value for name, value in self._evaluate().items()}
        if self.job.log_layers:
            for name, value in self.strategy.layers(self.streams).items():
                line[f"attittud/{name}"] = value
        return line

    def finish(self) -> dict[str, float]:
        """Give the model the weights that the phase chose; returns their validation figures.

        These are the best weights with select: best, else the latest ones (averaged with a window).
        No step can be replayed afterwards.
        """
        self.captured = None  # graphs hold as much memory as a step needs
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
            return self.state.best_values
        if self.average is not None:
            self.model.load_state_dict(self.average.values)
        return self.state.last_values

    def step(self) -> Telemetry:
        """Update the model with the batches and the learning rate of the next step.

        Returns a function that reads the figures of the step.
        """
        number = self.state.step
        self.streams.load(number)
        if self.average is not None:
            self.average.load(number)
        set_learning_rate(self.optimizer, self._learning_rate(number))
        if self.captured is None:
            telemetry = self._guarded_update().telemetry
        else:
            telemetry = self._captured_update(self.captured)
        self.state.step += 1
        return telemetry

    def _learning_rate(self, step: int) -> float:
        return learning_rate(self.config, step, self.steps, self.state.scale)

    def _captured_update(self, captured: CapturedSteps[_Update]) -> Telemetry:
        """Make an update, by a CUDA graph if one was recorded for this kind of step.

        A replay runs no Python code, so the strategy is told of the step and the losses are taken
        from the memory that the graph writes.
        """
        streams = self.streams
        # A graph has one random seed for the whole step. It is set here so that dropout depends
        # on the step alone.
        torch.manual_seed(mix(streams.seed, streams.name, self.state.step))
        kind = self.strategy.kind()
        graph_name = None
        if kind is not None:
            graph_name = f"{kind}{streams.rows.shape(kind)}"
        update, replayed = captured.run(graph_name, self._update)
        if replayed and kind is not None:
            self.strategy.replayed(kind)
        streams.values.update(update.values)
        return update.telemetry

    def _guarded_update(self) -> _Update:
        """Make an update; if it fails because training diverged, raise DivergedError instead."""
        try:
            return self._update()
        except RuntimeError as error:
            losses_and_weights = (*self.streams.values.values(), *self.model.parameters())
            finite = all(bool(tensor.isfinite().all()) for tensor in losses_and_weights)
            # Products of gradients may be infinite while losses and weights are finite: then a
            # decomposition does not converge, or the learning rate is beyond 32 bits.
            numeric = type(error).__name__ == "LinAlgError" or "overflow" in str(error)
            if finite and not numeric:
                raise
            raise self._diverged(one_line(error, 120)) from None

    def _update(self) -> _Update:
        """Compute the gradients, clip them if asked for, and change the weights and their average.

        This is the part of a step that a CUDA graph can record.
        """
        self.optimizer.zero_grad(set_to_none=True)
        telemetry = self.strategy.step(self.streams)
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return _Update(telemetry, self.streams.values)

    def read(self, telemetry: Telemetry) -> dict[str, float]:
        """Losses and figures of the last step; waits for the device. Raises an error if training
        diverged.
        """
        values = {name: float(value) for name, value in self.streams.values.items()}
        if not math.isfinite(values["loss/primary"]):
            raise self._diverged(f"the primary loss is {values['loss/primary']}")
        for name, value in telemetry().items():
            values[f"attittud/{name}"] = float(value)
        return values

    def _diverged(self, why: str) -> DivergedError:
        advice = f"lower training.{self.name}.lr, or set training.{self.name}.clip"
        return DivergedError(
            f"training diverged in step {self.state.step} of phase {self.name}: {why}; {advice}"
        )

    def _evaluate(self) -> dict[str, float]:
        """Return the figures of the model now, and act on them.

        The best model so far is kept; without progress for some evaluations, schedule plateau
        halves the learning rate, and `patience` stops the phase. A loss that is not finite raises
        DivergedError, or is only logged if the phase is over and a better model was kept.
        """
        state = self.state
        with ExitStack() as stack:
            stack.enter_context(self.streams.autocast())
            if self.average is not None:
                stack.enter_context(self.average.in_use())
            figures = self.measure()
        loss = figures["loss"]
        if not math.isfinite(loss):
            if not self.done or not self.best_weights:
                raise self._diverged(f"the validation loss is {loss}")
            logger.warning(
                "training diverged at its end; the model of step %d is kept", state.best_step
            )
        state.last_values = figures
        if self._is_best(figures):
            state.best_step = state.step
            state.best_values = figures
            state.worse = 0
            state.plateau = 0
            if self.config.select == "best":
                self.best_weights = copied(self.model)
        else:
            state.worse += 1
            state.plateau += 1
        if self.config.schedule == "plateau" and state.plateau >= PLATEAU:
            state.scale /= 2
            state.plateau = 0
        if self.config.patience is not None and state.worse >= self.config.patience:
            state.stopped = "patience"
        return figures

    def _is_best(self, figures: Mapping[str, float]) -> bool:
        """Whether no earlier evaluation was as good; if so, its score becomes the best one.

        Of two models with the same metric, the lower loss is better. A metric that is not defined
        is worse than any other, and a model whose loss is not finite is never the best.
        """
        loss = figures["loss"]
        goodness = -loss
        if self.metric != "loss":
            goodness = figures[self.metric]
        if not math.isfinite(goodness):
            goodness = -math.inf
        score = [goodness, -loss]
        best = self.state.best
        if not math.isfinite(loss) or (best is not None and score <= best):
            return False
        self.state.best = score
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed phase needs besides the model itself."""
        state = {
            "state": asdict(self.state),
            "best": self.best_weights,
            "optimizer": self.optimizer.state_dict(),
            "strategy": self.strategy.state_dict(),
        }
        if self.average is not None:
            state["average"] = self.average.values
        return state

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.state = PhaseState(**saved["state"])
        weights = self.model.state_dict()
        if saved["best"] is not None:
            self.best_weights = laid_out(saved["best"], weights)
        if self.average is not None:
            self.average.values = laid_out(saved["average"], weights)
        restore_optimizer(self.optimizer, saved["optimizer"])
        strategy = dict(saved["strategy"])
        for name, value in strategy.items():
            if isinstance(value, Tensor):
                strategy[name] = value.to(self.streams.device)
        self.strategy.load_state_dict(strategy)


def _settings(job: Config, name: str) -> StrategyConfig:
    """Return the settings of the strategy of a phase: fine-tuning sees primary data alone."""
    if name == "guided":
        return job.strategy
    return StrategyConfig(name="primary_only")


def _make_streams(
    job: Config,
    name: str,
    data: Prepared,
    model: Network,
    device: torch.device,
    judges: Examples | None,
    *,
    captured: bool,
) -> Streams:
    """Return the losses of the steps of the phase `name`, with the sizes of all its batches.

    `judges` are the held-out examples of its steps; None if its strategy asks for none.
    """
    config = phase_config(job, name)
    sizes = {
        "primary": config.primary_batch,
        "basis": _settings(job, name).basis_batch or config.primary_batch,
        **auxiliary_batches(job, name, data),
    }
    return Streams(
        model,
        data.primary,
        data.auxiliary,
        sizes,
        name,
        job.seed,
        device,
        judges=judges,
        bf16=job.training.precision == "bf16",
        accumulate=config.accumulate,
        augment=job.training.augment,
        fixed_memory=captured,
    )


def _checked_strategy(
    job: Config, name: str, data: Prepared, model: Network, judge_count: int
) -> Strategy:
    """Build the strategy of the phase `name`; refuses settings that do not go together with the
    data or the model.

    `judge_count` is the number of held-out examples that a strategy may ask for.
    """
    if job.training.augment and data.kind != "image":
        problem = f"training.augment: changes images, but the data are {data.kind}s"
        raise InputError(f"{problem}; leave it out")
    settings = _settings(job, name)
    weights = {source: job.data.auxiliary[source].weight for source in data.auxiliary}
    strategy = make_strategy(settings, model, weights=weights, seed=mix(job.seed, name, "guide"))
    check_sizes(job, name, data, settings, strategy, judge_count)
    matching(model, settings.exclude, "strategy.exclude")
    if strategy.needs_shared:
        shares_head = any(task.shares_head for task in data.auxiliary.values())
        check_shared(model, settings.exclude, head=shares_head)
    return strategy
