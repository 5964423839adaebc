"""One phase of training: steps, evaluations, the choice of the best model, and a state that can be
saved anywhere.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attittud_lab.config.schema import Config, PhaseConfig, StrategyConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.tasks import Examples, mix
from attittud_lab.errors import InputError, one_line
from attittud_lab.models.network import Network, check_shared, matching
from attittud_lab.strategies import Strategy, Telemetry, make_strategy
from attittud_lab.training.devices import CapturedSteps, CudaRecorder
from attittud_lab.training.evaluate import evaluate
from attittud_lab.training.streams import Streams

logger = logging.getLogger("attittud")

FEW_JUDGES = 8
"""The fewest validation examples without a warning from strategies that rely on them."""
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
    plateau: int = 0
    scale: float = 1.0
    seconds: float = 0.0
    stopped: Literal["patience", "seconds"] | None = None


class AveragedWeights:
    """An exponential mean of a model's weights and buffers over about `window` steps.

    In the mean after step t, step i of 1 to t counts in proportion to (1 - 1 / window) ** (t - i);
    the model before the first step does not count. Whole numbers, such as BatchNorm's count, are
    not averaged.
    """

    def __init__(self, model: nn.Module, window: float, device: torch.device) -> None:
        self.model, self.values = model, dict[str, Tensor]()
        self._kept = 1 - 1 / max(1.0, window)
        # The share of the newest weights. A captured step would repeat a Python number for ever.
        self._share = torch.ones((), device=device)

    def load(self, step: int) -> None:
        """Go to a step, counted from 0."""
        self._share.fill_((1 - self._kept) / (1 - self._kept ** (step + 1)))

    @torch.no_grad()
    def update(self) -> None:
        """Add the model as it is now."""
        for name, tensor in self.model.state_dict().items():
            if name not in self.values:
                self.values[name] = tensor.clone()
            elif tensor.is_floating_point():
                self.values[name].lerp_(tensor, self._share.to(tensor.dtype))
            else:
                self.values[name].copy_(tensor)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Give the model its mean weights inside the block."""
        trained = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.values)
        try:
            yield
        finally:
            self.model.load_state_dict(trained)


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
        """Build a phase. `captured`: its steps become CUDA graphs.

        `judges` are the examples that choose the weights of strategy auto, by default the
        validation examples. `looks` are the steps after which `measure` evaluates the model,
        instead of training.PHASE.evaluations. With a `window`, the evaluated and the final model of
        the phase have weights averaged over this many steps.
        """
        config: PhaseConfig = getattr(job.training, name)
        chosen = job.strategy if name == "guided" else StrategyConfig(name="primary_only")
        sources = {source: job.data.auxiliary[source] for source in data.auxiliary}
        weights = {source: about.weight for source, about in sources.items()}
        batches = {
            source: about.batch_size or config.batch_size for source, about in sources.items()
        }
        if job.training.augment and data.kind != "image":
            problem = f"training.augment: changes images, but the data are {data.kind}s"
            raise InputError(f"{problem}; leave it out")
        strategy = make_strategy(chosen, model, weights=weights, seed=mix(job.seed, name, "guide"))
        judges = data.validation if judges is None else judges
        _check(name, config, chosen, strategy, data, batches, len(judges))
        matching(model, chosen.exclude, "strategy.exclude")
        if strategy.needs_shared:
            check_shared(
                model,
                chosen.exclude,
                head=any(task.shares_head for task in data.auxiliary.values()),
            )
        self.name = name
        self.job = job
        self.strategy = strategy
        self.model = model
        self.config = config if strategy.trains_head else replace(config, select="best")
        self.metric = metric if strategy.trains_head else "loss"
        self.steps = phase_steps(name, config, data, batches)
        self.evaluate_every = max(1, self.steps // config.evaluations)
        sizes = {
            "primary": config.primary_batch,
            "basis": chosen.basis_batch or config.primary_batch,
            **batches,
        }
        self.streams = Streams(
            model,
            data.primary,
            data.auxiliary,
            sizes,
            name,
            job.seed,
            device,
            judges=judges if strategy.uses_held_out else None,
            bf16=job.training.precision == "bf16",
            accumulate=config.accumulate,
            augment=job.training.augment,
            held=captured,
        )
        self.captured: CapturedSteps[_Update] | None = (
            CapturedSteps(CudaRecorder(device)) if captured else None
        )
        self.optimizer = _optimizer(model, config, device if captured else None)
        self.state = PhaseState()
        self.best_weights: dict[str, Tensor] | None = None
        self.average = AveragedWeights(model, window, device) if window else None
        self.looks = looks

        self.measure = measure or partial(evaluate, model, data.primary, data.validation, device)

    @property
    def done(self) -> bool:
        return self.state.step >= self.steps or self.state.stopped is not None

    def run(
        self,
        record: Callable[[Mapping[str, Any]], None],
        checkpoint: Callable[[], None],
        advanced: Callable[[int, Mapping[str, float]], None],
        until: int | None = None,
    ) -> None:
        """Run to the end, or `until` a step. `record` takes a line of metrics; `checkpoint` is
        called in consistent states.
        """
        state = self.state
        job = self.job
        device = self.streams.device
        started = time.perf_counter()
        reported = state.step
        shown = dict[str, float]()
        end = self.steps if until is None else min(until, self.steps)
        while not self.done and state.step < end:
            telemetry = self.step()
            last = state.step == end
            logging = state.step % job.log_every == 0 or last
            if self.looks is None:
                evaluating = state.step % self.evaluate_every == 0 or last
            else:
                evaluating = state.step in self.looks
            saving = job.checkpoint_every is not None and state.step % job.checkpoint_every == 0
            if not (logging or evaluating or saving):
                continue
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            state.seconds += time.perf_counter() - started
            where = {"step": state.step, "seconds": state.seconds}
            if logging:
                shown = self.read(telemetry)
                record(
                    where
                    | {"lr": learning_rate(self.config, state.step - 1, self.steps, state.scale)}
                    | shown
                )
            if self.config.seconds is not None and state.seconds >= self.config.seconds:
                state.stopped, evaluating = "seconds", True
            if logging or evaluating:
                advanced(state.step - reported, shown)
                reported = state.step
            if evaluating:
                values = {f"validation/{name}": value for name, value in self._look().items()}
                if job.log_layers:
                    # The clock of the training seconds is stopped here.
                    values |= {
                        f"attittud/{name}": v
                        for name, v in self.strategy.layers(self.streams).items()
                    }
                record(where | values)
            if saving or (evaluating and job.checkpoint_every is not None):
                checkpoint()
            started = time.perf_counter()

    def finish(self) -> dict[str, float]:
        """Load the chosen model; returns its figures on validation."""
        self.captured = None  # graphs hold as much memory as a step needs
        if self.average is not None:
            self.model.load_state_dict(self.average.values)
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
            return self.state.best_values
        return self.state.last_values

    def step(self) -> Telemetry:
        """One update of the model; returns a function that reads its figures."""
        number = self.state.step
        streams = self.streams
        strategy = self.strategy
        streams.load(number)
        if self.average is not None:
            self.average.load(number)
        lr = learning_rate(self.config, number, self.steps, self.state.scale)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):  # a captured step reads it there
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if self.captured is None:
            telemetry = self._guarded_update().telemetry
        else:
            # A graph has one random seed for the whole step. It is set here so that dropout depends
            # on the step alone.
            torch.manual_seed(mix(streams.seed, streams.name, number))
            kind = strategy.kind()
            name = None if kind is None else f"{kind}{streams.rows.shape(kind)}"
            update, replayed = self.captured.run(name, self._update)
            if replayed and kind is not None:
                strategy.replayed(kind)
            streams.values.update(update.values)
            telemetry = update.telemetry
        self.state.step += 1
        return telemetry

    def _guarded_update(self) -> _Update:
        """An update; if it fails because numbers are no longer finite, the error says so."""
        try:
            return self._update()
        # A decomposition that does not converge, or a learning rate beyond 32 bits.
        except RuntimeError as error:
            tensors = (*self.streams.values.values(), *self.model.parameters())
            finite = all(bool(tensor.isfinite().all()) for tensor in tensors)
            # Products of gradients may be infinite while losses and weights are not.
            numeric = type(error).__name__ == "LinAlgError" or "overflow" in str(error)
            if finite and not numeric:
                raise
            raise self._diverged(one_line(error, 120)) from None

    def _update(self) -> _Update:
        """The part of a step that runs on the device."""
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
        return values | {f"attittud/{name}": float(value) for name, value in telemetry().items()}

    def _diverged(self, why: str) -> DivergedError:
        cure = f"lower training.{self.name}.lr, or set training.{self.name}.clip"
        return DivergedError(
            f"training diverged in step {self.state.step} of phase {self.name}: {why}; {cure}"
        )

    def _look(self) -> dict[str, float]:
        """Evaluate; keep the best model, lower the learning rate or stop."""
        state = self.state
        config = self.config
        averaged = nullcontext() if self.average is None else self.average.in_use()
        with self.streams.autocast(), averaged:
            figures = self.measure()
        loss = figures["loss"]
        finite = math.isfinite(loss)
        if not finite:
            if not self.done or not self.best_weights:
                raise self._diverged(f"the validation loss is {loss}")
            logger.warning(
                "training diverged at its end; the model of step %d is kept", state.best_step
            )
        value = -loss if self.metric == "loss" else figures[self.metric]
        if not math.isfinite(value):
            value = -math.inf
        score = [value, -loss]  # of two models with the same metric, the lower loss is better
        state.last_values = figures
        if finite and (state.best is None or score > state.best):
            state.best = score
            state.best_step = state.step
            state.best_values = figures
            state.worse = 0
            state.plateau = 0
            if config.select == "best":
                self.best_weights = {
                    name: tensor.clone() for name, tensor in self.model.state_dict().items()
                }
        else:
            state.worse = state.worse + 1
            state.plateau = state.plateau + 1
        if config.schedule == "plateau" and state.plateau >= PLATEAU:
            state.scale = state.scale / 2
            state.plateau = 0
        if config.patience is not None and state.worse >= config.patience:
            state.stopped = "patience"
        return figures

    def state_dict(self) -> dict[str, Any]:
        state = {
            "state": asdict(self.state),
            "best": self.best_weights,
            "optimizer": self.optimizer.state_dict(),
            "strategy": self.strategy.state_dict(),
        }
        return state if self.average is None else state | {"average": self.average.values}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.state = PhaseState(**saved["state"])
        weights = self.model.state_dict()
        if saved["best"] is not None:
            self.best_weights = _laid_out(saved["best"], weights)
        if self.average is not None:
            self.average.values = _laid_out(saved["average"], weights)
        # Groups hold only settings, which come from this run, and the learning rate, which every
        # step sets.
        groups = self.optimizer.state_dict()["param_groups"]
        parameters: list[Tensor] = []
        for group in self.optimizer.param_groups:
            parameters += group["params"]
        moments = {}
        for number, tensors in saved["optimizer"]["state"].items():
            like = dict.fromkeys(tensors, parameters[number])
            if "step" in tensors:
                like["step"] = tensors["step"]
            moments[number] = _laid_out(tensors, like)
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        strategy = {}
        for name, value in saved["strategy"].items():
            on_device = isinstance(value, Tensor)
            strategy[name] = value.to(self.streams.device) if on_device else value
        self.strategy.load_state_dict(strategy)


def _laid_out(values: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return values on the device and with the strides of others.

    A fused optimizer needs both, and files store neither.
    """
    with torch.no_grad():
        return {name: torch.empty_like(like[name]).copy_(value) for name, value in values.items()}


def _optimizer(
    model: nn.Module, config: PhaseConfig, captured_on: torch.device | None
) -> torch.optim.Optimizer:
    """Build the optimizer of a phase over the parameters that train. `captured_on`: the device on
    which its step is replayed and which must hold the learning rate; None if steps are not
    captured.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    lr: Any = config.lr
    options: dict[str, Any] = {"weight_decay": config.weight_decay}
    on_gpu = captured_on is not None and captured_on.type == "cuda"
    if captured_on is not None:
        lr = torch.tensor(config.lr, device=captured_on)
        if on_gpu:
            options["fused"] = True
        else:
            options["foreach"] = False
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=config.momentum, **options)
    if on_gpu:
        options["capturable"] = True
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    optimizer = kind(parameters, lr, **options)
    # The first steps are deliberately not captured; torch would warn about them.
    optimizer._warned_capturable_if_run_uncaptured = True
    return optimizer


def learning_rate(config: PhaseConfig, step: int, steps: int, scale: float) -> float:
    """The learning rate of a step; `scale` is how far schedule plateau has lowered it."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    end = min(config.lr_min, config.lr)
    if config.schedule == "plateau":
        return max(end, config.lr * scale)
    done = (step - config.warmup) / max(1, steps - config.warmup)
    if config.schedule == "cosine":
        return end + (config.lr - end) * (1 + math.cos(math.pi * done)) / 2
    return config.lr + (end - config.lr) * done if config.schedule == "linear" else config.lr


def _check(
    name: str,
    config: PhaseConfig,
    chosen: StrategyConfig,
    strategy: Strategy,
    data: Prepared,
    batches: Mapping[str, int],
    judges: int,
) -> None:
    """Refuse a strategy without data, and batches that are too large or cannot be divided into
    equal micro-batches.
    """
    if strategy.needs_auxiliary and not data.auxiliary:
        problem = f"strategy {chosen.name!r} needs auxiliary data, but data.auxiliary is empty"
        raise InputError(f"{problem}; name a source there, or use strategy: primary_only")
    if strategy.uses_held_out and judges < FEW_JUDGES:
        problem = f"only {judges} validation examples decide the weights of strategy {chosen.name}"
        logger.warning("%s; raise data.primary.validation", problem)
    strategy.check_batches(name, config)
    primary = f"training.{name}.primary_batch"
    available = len(data.primary.examples)
    for key, size in {
        primary: config.primary_batch,
        "strategy.basis_batch": chosen.basis_batch or 0,
    }.items():
        if size > available:
            problem = f"{key} is {size}, but there are only {available} primary training examples"
            raise InputError(f"{problem}; lower it, or raise data.primary.train")
    sizes = {primary: config.primary_batch}
    if strategy.needs_auxiliary:
        for source, size in batches.items():
            sizes[f"the batch size of auxiliary source {source}"] = size
    for key, size in sizes.items():
        if size % config.accumulate:
            problem = f"training.{name}.accumulate: {key} is {size}"
            raise InputError(f"{problem}; make it a multiple of {config.accumulate}")


def phase_steps(
    name: str, settings: PhaseConfig, data: Prepared, batches: Mapping[str, int]
) -> int:
    """Updates of a phase; epochs are passes over the largest auxiliary source, or over the primary
    set.
    """
    if settings.epochs is None:
        return settings.steps
    passes = [len(data.primary.examples) / settings.primary_batch]
    if name == "guided" and data.auxiliary:
        passes = [len(task.examples) / batches[source] for source, task in data.auxiliary.items()]
    return max(1, math.ceil(settings.epochs * max(passes)))
