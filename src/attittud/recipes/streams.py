"""The batches of a phase by task, and the losses of a step: what a strategy asks for."""

from __future__ import annotations

from collections.abc import Mapping
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
            )
            for name, task in streams.items()
        }
        if self.apart is not None:
            for name in ("primary", "basis"):
                whole = self._orders[name]
                self._orders[f"{name} without judges"] = Order(
                    len(self.apart.others), self.seed, f"{self.name}/{name}", whole.device
                )
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
            return self.losses(self.primary_task, self.apart.judges)
        batch = self._rows["primary"] if self.held else self._batch("primary", self.step)
        every = self._orders["outside judges"].batch(self.step, len(self.primary_task.examples)).to(batch.device)
        some = every[: self._outside + self.primary_batch]  # enough, even if all of the batch is among them
        inside = torch.isin(some, batch).int()
        return self.losses(self.primary_task, some[inside.argsort(stable=True)][: self._outside])

    def _batch(self, stream: str, step: int) -> Tensor:
        size = self._sizes[stream]
        if self.apart is None or stream not in ("primary", "basis") or step >= self.apart.until:
            return self._orders[stream].batch(step, size)
        order = self._orders[f"{stream} without judges"]
        return self.apart.others.to(order.device)[order.batch(step, size)]

    def basis(self) -> Tensor:
        return self._losses("basis", self.primary_task)

    def _losses(self, stream: str, task: Task, *, detach: bool = False, count: int | None = None) -> Tensor:
        if self.held:
            rows = self._rows[stream]
        else:
            rows = self._batch(stream, self.step)
            # Dropout and masks depend on the step alone: no state to save, and all strategies meet the same noise.
            torch.manual_seed(mix(self.seed, self.name, stream, self.step))
        return self.losses(task, rows[:count], detach=detach)

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
