"""One phase of training: steps, evaluations, the choice of the best model, and a state that can be saved anywhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attittud.recipes.config import PhaseConfig
from attittud.recipes.errors import InputError
from attittud.recipes.strategies import Guided, Strategy, Telemetry
from attittud.recipes.tasks import Examples, Order, Task, mix, per_example_losses

PLATEAU = 4
"""Evaluations without improvement after which schedule `plateau` halves the learning rate (the paper's choice)."""


class DivergedError(InputError):
    """The loss is not a number any more."""


@dataclass
class Streams:
    """The batches of a phase by task, and the losses of a step: what a strategy asks for."""

    model: nn.Module
    primary_task: Task
    tasks: Mapping[str, Task]
    name: str
    seed: int
    primary_batch: int
    batches: Mapping[str, int]
    basis_batch: int | None
    device: torch.device
    bf16: bool = False
    step: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)
    """Mean losses of the current step, on the device."""

    def __post_init__(self) -> None:
        streams = {"primary": self.primary_task, "basis": self.primary_task, **self.tasks}
        self._orders = {
            name: Order(len(task.examples), self.seed, f"{self.name}/{name}", task.examples.inputs.device)
            for name, task in streams.items()
        }

    @property
    def auxiliary_examples(self) -> int:
        return sum(self.batches[name] for name in self.tasks)

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        losses = self._losses("primary", self.primary_task, self.primary_batch, detach=detach, count=count)
        self.values["loss/primary"] = losses.detach().mean()
        return losses

    def auxiliary(self) -> dict[str, Tensor]:
        losses = {name: self._losses(name, task, self.batches[name]).mean() for name, task in self.tasks.items()}
        self.values |= {f"loss/auxiliary/{name}": loss.detach() for name, loss in losses.items()}
        return losses

    def basis(self) -> Tensor:
        return self._losses("basis", self.primary_task, self.basis_batch or self.primary_batch)

    def _losses(self, stream: str, task: Task, size: int, *, detach: bool = False, count: int | None = None) -> Tensor:
        rows = self._orders[stream].batch(self.step, size)[:count]
        # Dropout and masks depend on the step alone: no state to save, and all strategies meet the same noise.
        torch.manual_seed(mix(self.seed, self.name, stream, self.step))
        return self.losses(task, rows, detach=detach)

    def losses(self, task: Task, rows: Tensor, *, detach: bool = False) -> Tensor:
        """Per-example losses of chosen examples of a task."""
        inputs, targets = _on(task.examples, rows, self.device)
        with self.autocast():
            return per_example_losses(self.model, task, inputs, targets, detach=detach)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()


def _on(examples: Examples, rows: Tensor, device: torch.device) -> tuple[Tensor, Tensor | None]:
    inputs, targets = examples.take(rows)
    return inputs.to(device, non_blocking=True), None if targets is None else targets.to(device, non_blocking=True)


@dataclass
class PhaseState:
    """Where a phase stands."""

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
    stopped: str | None = None


class Phase:
    """Runs steps from wherever its state stands."""

    def __init__(
        self,
        name: str,
        config: PhaseConfig,
        steps: int,
        streams: Streams,
        strategy: Strategy,
        *,
        metric: str,
        evaluate: Callable[[], dict[str, float]],
        log_every: int,
        checkpoint_every: int,
    ) -> None:
        self.name, self.config, self.steps, self.streams, self.strategy = name, config, steps, streams, strategy
        self.model = streams.model
        self.metric, self._evaluate = metric, evaluate
        self.log_every, self.checkpoint_every = log_every, checkpoint_every
        self.evaluate_every = max(1, steps // config.evaluations)
        self.optimizer = _optimizer(self.model, config)
        self.state = PhaseState()
        self.best_weights: dict[str, Tensor] | None = None

    @property
    def done(self) -> bool:
        return self.state.step >= self.steps or self.state.stopped is not None

    def run(
        self,
        record: Callable[[Mapping[str, Any]], None],
        checkpoint: Callable[[], None],
        advanced: Callable[[int, Mapping[str, float]], None],
    ) -> None:
        """Go on to the end. `record` takes a line of metrics, `checkpoint` is called where all is consistent."""
        state, device = self.state, self.streams.device
        started, reported = time.perf_counter(), state.step
        while not self.done:
            telemetry = self.step()
            last = state.step == self.steps
            logging = state.step % self.log_every == 0 or last
            evaluating = state.step % self.evaluate_every == 0 or last
            if not (logging or evaluating or state.step % self.checkpoint_every == 0):
                continue
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            state.seconds += time.perf_counter() - started
            if logging:
                values = self.read(telemetry)
                record({"step": state.step, "seconds": state.seconds, "lr": self._lr(state.step - 1), **values})
                advanced(state.step - reported, values)
                reported = state.step
            if self.config.seconds is not None and state.seconds >= self.config.seconds:
                state.stopped, evaluating = "seconds", True
            if evaluating:
                found = self._look()
                values = {f"validation/{name}": value for name, value in found.items()}
                if isinstance(self.strategy, Guided):
                    # The seconds of training have stopped counting.
                    values |= {f"attittud/{name}": v for name, v in self.strategy.layers(self.streams).items()}
                record({"step": state.step, "seconds": state.seconds, **values})
            if evaluating or state.step % self.checkpoint_every == 0:
                checkpoint()
            started = time.perf_counter()

    def finish(self) -> dict[str, float]:
        """Put the chosen model in place; its figures on validation."""
        if self.best_weights is not None:
            self.model.load_state_dict(self.best_weights)
            return self.state.best_values
        return self.state.last_values

    def step(self) -> Telemetry:
        """One update of the model; what is returned reads its figures."""
        self.streams.step = self.state.step
        self.streams.values = {}
        self.optimizer.zero_grad(set_to_none=True)
        telemetry = self.strategy.step(self.streams)
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr(self.state.step)
        self.optimizer.step()
        self.state.step += 1
        return telemetry

    def read(self, telemetry: Telemetry) -> dict[str, float]:
        """Losses and figures of the last step, which waits for the device; refuses to go on where they diverged."""
        values = {name: float(value) for name, value in self.streams.values.items()}
        if not math.isfinite(values["loss/primary"]):
            raise DivergedError(
                f"training diverged in step {self.state.step} of phase {self.name}: the primary loss is "
                f"{values['loss/primary']}; lower training.{self.name}.lr, or set training.{self.name}.clip"
            )
        return values | {f"attittud/{name}": float(value) for name, value in telemetry().items()}

    def _look(self) -> dict[str, float]:
        """Evaluate, and draw the consequences."""
        state, config = self.state, self.config
        found = self._evaluate()
        value = found[self.metric]
        score = [
            value if math.isfinite(value) else -math.inf,
            -found["loss"] if math.isfinite(found["loss"]) else -math.inf,
        ]
        state.last_values = found
        if state.best is None or score > state.best:
            state.best, state.best_step, state.best_values, state.worse, state.plateau = score, state.step, found, 0, 0
            if config.select == "best":
                self.best_weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        else:
            state.worse, state.plateau = state.worse + 1, state.plateau + 1
        if config.schedule == "plateau" and state.plateau >= PLATEAU:
            state.scale, state.plateau = state.scale / 2, 0
        if config.patience is not None and state.worse >= config.patience:
            state.stopped = "patience"
        return found

    def _lr(self, step: int) -> float:
        config = self.config
        if step < config.warmup:
            return config.lr * (step + 1) / config.warmup
        end = min(config.lr_min, config.lr)
        if config.schedule == "plateau":
            return max(end, config.lr * self.state.scale)
        done = (step - config.warmup) / max(1, self.steps - config.warmup)
        if config.schedule == "cosine":
            return end + (config.lr - end) * (1 + math.cos(math.pi * done)) / 2
        if config.schedule == "linear":
            return config.lr + (end - config.lr) * done
        return config.lr

    def state_dict(self) -> dict[str, Any]:
        return {
            "state": asdict(self.state),
            "best": self.best_weights,
            "optimizer": self.optimizer.state_dict(),
            "strategy": self.strategy.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        device = self.streams.device
        self.state = PhaseState(**saved["state"])
        best = saved["best"]
        self.best_weights = None if best is None else {name: tensor.to(device) for name, tensor in best.items()}
        self.optimizer.load_state_dict(saved["optimizer"])
        strategy = {
            key: value.to(device) if isinstance(value, Tensor) else value for key, value in saved["strategy"].items()
        }
        self.strategy.load_state_dict(strategy)


def _optimizer(model: nn.Module, config: PhaseConfig) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, config.lr, weight_decay=config.weight_decay)
