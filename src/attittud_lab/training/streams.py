"""The batches of a phase by task, and the losses of a step: what a strategy asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attittud.step.forward import enough_examples
from attittud_lab.data.tasks import Examples, Order, Task, mix, per_example_losses
from attittud_lab.errors import InputError
from attittud_lab.strategies import StepKind

JUDGES = " judges"
"""Their stream; no auxiliary source has a name with a blank at its beginning."""
MOST_JUDGES = 64
"""In one hearing; more would only make it slower."""
_BLOCK = 256
"""Steps whose rows are moved to the device at once."""


@dataclass
class Streams:
    """Set `step` before each step, by `load` where rows are held."""

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
    judges: Examples | None = None
    """Primary examples that never train, from which those of a hearing are drawn."""
    accumulate: int = 1
    """Micro-batches of a step."""
    held: bool = False
    """Rows of the current step lie in the same memory in every step, so that a captured step finds new examples there."""
    step: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)
    """Mean losses of the current step, on the device."""

    def __post_init__(self) -> None:
        streams = {"primary": self.primary_task, "basis": self.primary_task, **self.tasks}
        if self.judges is not None:
            streams[JUDGES] = replace(self.primary_task, examples=self.judges)
        self._orders = {
            name: Order(
                len(task.examples),
                self.seed,
                f"{self.name}/{name}",
                torch.device("cpu") if self.held else task.examples.inputs.device,
                # Judges of similar lengths would not speak for the others.
                None if name == JUDGES else task.examples.lengths,
            )
            for name, task in streams.items()
        }
        self._tasks = streams
        self._sizes = {
            "primary": self.primary_batch,
            "basis": self.basis_batch or self.primary_batch,
            **{name: self.batches[name] for name in self.tasks},
        }
        if self.judges is not None:
            self._sizes[JUDGES] = min(MOST_JUDGES, len(self.judges))
        self._rows: dict[str, Tensor] = {}
        self._block: tuple[int, dict[str, Tensor]] = (-1, {})

    @property
    def auxiliary_examples(self) -> int:
        return sum(self.batches[name] for name in self.tasks)

    def load(self, step: int) -> None:
        """Go to a step; where rows are held, put its rows into their place."""
        self.step, self.values = step, {}
        if not self.held:
            return
        number, offset = divmod(step, _BLOCK)
        if self._block[0] != number:
            steps = range(number * _BLOCK, (number + 1) * _BLOCK)
            self._block = (
                number,
                {name: torch.stack([self._batch(name, i) for i in steps]).to(self.device) for name in self._sizes},
            )
        for name, rows in self._block[1].items():
            if name in self._rows:
                self._rows[name].copy_(rows[offset])
            else:
                self._rows[name] = rows[offset].clone()

    def shape(self, kind: StepKind) -> str:
        """What tells steps of a kind apart whose texts are cut to different lengths; empty for data of one shape."""
        met = {"basis": kind.refresh, JUDGES: kind.judge}
        used = [name for name in self._sizes if met.get(name, True)]
        widths = {name: self._width(name) for name in used}
        return "".join(f" {name}={width}" for name, width in widths.items() if width is not None)

    @property
    def micro(self) -> Sequence[Streams | MicroBatch]:
        """The step in pieces whose mean losses have its losses as their mean."""
        if self.accumulate == 1:
            return [self]
        return [MicroBatch(self, number) for number in range(self.accumulate)]

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        losses = self._losses("primary", self.primary_task, detach=detach, count=count)
        self.values["loss/primary"] = losses.detach().mean()
        return losses

    def auxiliary(self) -> dict[str, Tensor]:
        losses = {name: self._losses(name, task).mean() for name, task in self.tasks.items()}
        self.values |= {f"loss/auxiliary/{name}": loss.detach() for name, loss in losses.items()}
        return losses

    def judge(self) -> Tensor:
        """Losses of the step's judges."""
        rows = self._rows[JUDGES] if self.held else self._batch(JUDGES, self.step)
        with self._enough(JUDGES):
            return self.losses(self._tasks[JUDGES], rows, width=self._width(JUDGES))

    def _batch(self, stream: str, step: int, *, in_memory: bool = False) -> Tensor:
        order, size = self._orders[stream], self._sizes[stream]
        return order.batch_in_memory(step, size) if in_memory else order.batch(step, size)

    def _width(self, stream: str) -> int | None:
        """What the texts of the current step's batch are cut to."""
        examples = self._tasks[stream].examples
        if examples.lengths is None:
            return None
        return examples.width(self._batch(stream, self.step, in_memory=True))

    def basis(self) -> Tensor:
        return self._losses("basis", self.primary_task)

    def _losses(
        self,
        stream: str,
        task: Task,
        *,
        detach: bool = False,
        count: int | None = None,
        part: int | None = None,
    ) -> Tensor:
        if self.held:
            rows = self._rows[stream]
        else:
            rows = self._batch(stream, self.step)
            # Dropout and masks depend on the step alone: no state to save, and all strategies meet the same noise.
            torch.manual_seed(mix(self.seed, self.name, stream, self.step, *([] if part is None else [part])))
        if part is not None:
            rows = rows.chunk(self.accumulate)[part]
        with self._enough(stream):
            return self.losses(task, rows[:count], detach=detach, width=self._width(stream))

    def _enough(self, stream: str) -> AbstractContextManager[None]:
        """Names the setting that leaves BatchNorm with one example at a time."""
        phase = f"training.{self.name}"
        own = {"primary": f"{phase}.primary_batch", "basis": "strategy.basis_batch", JUDGES: "data.primary.validation"}
        setting = own.get(stream, f"{phase}.batch_size (or data.auxiliary.{stream}.batch_size)")
        in_parts = self.accumulate > 1 and stream not in ("basis", JUDGES)
        fewer = f", or lower {phase}.accumulate" if in_parts else ""
        return enough_examples(setting, f"raise it{fewer}, or choose a model without BatchNorm", InputError)

    def losses(self, task: Task, rows: Tensor, *, detach: bool = False, width: int | None = None) -> Tensor:
        """Per-example losses of chosen examples of a task; of texts the first `width` tokens are read."""
        inputs, targets = _on(task.examples, rows, self.device, width)
        with self.autocast():
            return per_example_losses(self.model, task, inputs, targets, detach=detach)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()


@dataclass(frozen=True)
class MicroBatch:
    """One of the equal pieces in which a step's batches are taken."""

    streams: Streams
    number: int

    @property
    def auxiliary_examples(self) -> int:
        return self.streams.auxiliary_examples // self.streams.accumulate

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        streams = self.streams
        losses = streams._losses("primary", streams.primary_task, detach=detach, count=count, part=self.number)
        self._note("loss/primary", losses.mean())
        return losses

    def auxiliary(self) -> dict[str, Tensor]:
        streams = self.streams
        found = {name: streams._losses(name, task, part=self.number).mean() for name, task in streams.tasks.items()}
        for name, loss in found.items():
            self._note(f"loss/auxiliary/{name}", loss)
        return found

    def _note(self, name: str, loss: Tensor) -> None:
        values = self.streams.values
        values[name] = values.get(name, 0.0) + loss.detach() / self.streams.accumulate


def _on(examples: Examples, rows: Tensor, device: torch.device, width: int | None) -> tuple[Tensor, Tensor | None]:
    inputs, targets = examples.take(rows, width)
    return inputs.to(device, non_blocking=True), None if targets is None else targets.to(device, non_blocking=True)
