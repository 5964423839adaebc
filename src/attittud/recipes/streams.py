"""The batches of a phase by task, and the losses of a step: what a strategy asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attittud.recipes.data.splits import strata
from attittud.recipes.tasks import Examples, Order, Task, mix, per_example_losses

MOST_JUDGES = 64
"""They are all heard at once; more would only make a hearing slower."""
MOST_OUTSIDE = 32
"""Judges in a step once those set aside train too."""
_BLOCK = 256
"""Steps whose rows are moved to the device at once."""


@dataclass(frozen=True)
class Apart:
    """Rows of the primary set: judges, who are not trained on before step `until`, and all others."""

    judges: Tensor
    others: Tensor
    until: int

    @classmethod
    def of(cls, examples: Examples, share: float, until: int, seed: int) -> Apart | None:
        """At least two, as many of each class, as far as there are classes, and never the last example of one.

        Of several labels at once the rarest one of an example counts as its class. None where that leaves less than two.
        """
        count = min(max(2, round(share * len(examples))), MOST_JUDGES, len(examples) - 1)
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(mix(seed, "judges")))
        if examples.targets is not None:
            targets = examples.targets.cpu()[order]
            labels = torch.from_numpy(strata(targets.numpy(), len(order)))
            turn = torch.zeros(len(order), dtype=torch.int64)
            for label in labels.unique():
                rows = (labels == label).nonzero().flatten()
                turn[rows] = torch.arange(len(rows))
            for rows in _of_classes(targets):
                turn[rows[-1]] = len(order)  # it stays in training, which would not know its class otherwise
            order = order[turn.argsort(stable=True)]
            count = min(count, int((turn < len(order)).sum()))
        order = order.to(examples.inputs.device)
        return cls(order[:count], order[count:], until) if count >= 2 else None


def _of_classes(targets: Tensor) -> list[Tensor]:
    """Rows of each class, or of each label that some row has."""
    if targets.ndim == 1:
        return [(targets == label).nonzero().flatten() for label in targets.unique()]
    return [rows for column in targets.T if len(rows := column.nonzero().flatten())]


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
    apart: Apart | None = None
    """Primary examples that judge before they train."""
    accumulate: int = 1
    """Micro-batches of a step."""
    held: bool = False
    """Rows of the current step lie in the same memory in every step, so that a captured step finds new examples there."""
    step: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)
    """Mean losses of the current step, on the device."""

    def __post_init__(self) -> None:
        streams = {
            "primary": self.primary_task,
            "basis": self.primary_task,
            "outside judges": self.primary_task,
            **self.tasks,
        }
        self._orders = {
            name: Order(
                len(task.examples),
                self.seed,
                f"{self.name}/{name}",
                torch.device("cpu") if self.held else task.examples.inputs.device,
                # These judges are chosen on the device, where nobody knows their lengths.
                None if name == "outside judges" else task.examples.lengths,
            )
            for name, task in streams.items()
        }
        if self.apart is not None:
            others = self.apart.others.cpu()
            for name in ("primary", "basis"):
                whole = self._orders[name]
                lengths = None if whole.lengths is None else whole.lengths[others]
                self._orders[f"{name} without judges"] = Order(
                    len(others), self.seed, f"{self.name}/{name}", whole.device, lengths
                )
            self._others = {
                device: others.to(device) for device in (torch.device("cpu"), self._orders["primary"].device)
            }
            self._judges_width = self.primary_task.examples.width(self.apart.judges.cpu())
        self._tasks = streams
        self._sizes = {
            "primary": self.primary_batch,
            "basis": self.basis_batch or self.primary_batch,
            **{name: self.batches[name] for name in self.tasks},
        }
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

    def shape(self, kind: str) -> str:
        """What tells steps of a kind apart whose texts are cut to different lengths; empty for data of one shape."""
        used = [name for name in self._sizes if name != "basis" or kind == "refresh"]
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

    @property
    def judging(self) -> bool:
        """Whether there are judges in this step."""
        return self.apart is not None and (self.step < self.apart.until or self._outside > 0)

    @property
    def _outside(self) -> int:
        return min(MOST_OUTSIDE, len(self.primary_task.examples) - self.primary_batch)

    def judge(self) -> Tensor:
        """Losses of the examples set aside; later of examples that are not in this step's batch."""
        assert self.apart is not None
        if self.step < self.apart.until:
            return self.losses(self.primary_task, self.apart.judges, width=self._judges_width)
        batch = self._rows["primary"] if self.held else self._batch("primary", self.step)
        every = self._orders["outside judges"].batch(self.step, len(self.primary_task.examples)).to(batch.device)
        some = every[: self._outside + self.primary_batch]  # enough, even if all of the batch is among them
        inside = torch.isin(some, batch).int()
        return self.losses(self.primary_task, some[inside.argsort(stable=True)][: self._outside])

    def _batch(self, stream: str, step: int, *, in_memory: bool = False) -> Tensor:
        size = self._sizes[stream]
        apart = self.apart is not None and stream in ("primary", "basis") and step < self.apart.until
        order = self._orders[f"{stream} without judges" if apart else stream]
        rows = order.batch_in_memory(step, size) if in_memory else order.batch(step, size)
        return self._others[rows.device][rows] if apart else rows

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
        return self.losses(task, rows[:count], detach=detach, width=self._width(stream))

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
