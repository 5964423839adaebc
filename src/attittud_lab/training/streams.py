"""The batches of a phase by task, and the losses of a step that a strategy asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attittud_lab.data.tasks import Examples, Order, Task, mix, per_example_losses
from attittud_lab.errors import InputError
from attittud_lab.strategies import StepKind
from attittud_lab.training.augment import augmented

JUDGES = " judges"
"""The stream of held-out primary examples; no auxiliary source has a name that begins with a
blank.
"""
MOST_JUDGES = 64
"""Held-out examples in one step; more would only make it slower."""
_BLOCK = 256
"""Steps whose rows are moved to the device at once."""


class Batches:
    """The rows that each stream reads in the current step.

    With `held_on` they are in the same memory of that device in every step, where a captured step
    finds new examples.
    """

    def __init__(
        self,
        phase: str,
        seed: int,
        tasks: Mapping[str, Task],
        sizes: Mapping[str, int],
        held_on: torch.device | None,
    ) -> None:
        """Draw the order of each task's examples from the seed.

        `tasks` and `sizes` (examples of a batch) are by stream.
        """
        self._tasks = tasks
        self._sizes = sizes
        self._held_on = held_on
        self._orders: dict[str, Order] = {}
        for name, task in tasks.items():
            examples = task.examples
            device = torch.device("cpu") if held_on else examples.inputs.device
            # Held-out examples of similar lengths would not represent the others.
            lengths = None if name == JUDGES else examples.lengths
            order = Order(len(examples), seed, f"{phase}/{name}", device, lengths)
            self._orders[name] = order
        self._held: dict[str, Tensor] = {}
        """With `held_on`: the rows of the current step by stream, always in the same memory."""
        self._block = -1
        """Number of the block of `_BLOCK` steps whose rows are on the device."""
        self._rows_of_block: dict[str, Tensor] = {}
        """The rows of these steps by stream: `_BLOCK` x examples."""
        self.step = 0

    def load(self, step: int) -> None:
        """Go to a step, counted from 0.

        Rows that must stay at one address are copied there, from a block of steps that is sent to
        the device at once.
        """
        self.step = step
        if self._held_on is None:
            return
        block, offset = divmod(step, _BLOCK)
        if block != self._block:
            steps = range(block * _BLOCK, (block + 1) * _BLOCK)
            for name in self._sizes:
                rows = torch.stack([self._order(name, step) for step in steps])
                self._rows_of_block[name] = rows.to(self._held_on)
            self._block = block
        for name, rows in self._rows_of_block.items():
            if name in self._held:
                self._held[name].copy_(rows[offset])
            else:
                self._held[name] = rows[offset].clone()

    def rows(self, stream: str) -> Tensor:
        """The numbers of the examples that a stream reads in this step."""
        if self._held_on is None:
            return self._order(stream, self.step)
        return self._held[stream]

    def _order(self, stream: str, step: int) -> Tensor:
        """Return the rows of a stream in any step."""
        return self._orders[stream].batch(step, self._sizes[stream])

    def width(self, stream: str) -> int | None:
        """The number of tokens that the texts of this step's batch are cut to; None for other data."""
        examples = self._tasks[stream].examples
        if examples.lengths is None:
            return None
        return examples.width(
            self._orders[stream].batch(self.step, self._sizes[stream], in_memory=True)
        )

    def shape(self, kind: StepKind) -> str:
        """Return the lengths of the texts that a step of this kind reads, as in " primary=16"; ""
        for data of one shape.

        Steps of one kind with other lengths need a CUDA graph of their own.
        """
        # A step reads these two streams only if its kind says so, and all others always.
        is_read = {"basis": kind.refresh, JUDGES: kind.judge}
        shape = ""
        for name in self._sizes:
            if is_read.get(name, True) and self._tasks[name].examples.lengths is not None:
                shape += f" {name}={self.width(name)}"
        return shape


@dataclass
class Streams:
    """The losses of a step; `load` goes to the next step."""

    model: nn.Module
    primary_task: Task
    tasks: Mapping[str, Task]
    sizes: dict[str, int]
    """Examples in a batch of `primary`, of `basis` and of each auxiliary source."""
    name: str
    seed: int
    device: torch.device
    judges: Examples | None = None
    """Primary examples that never train, some of which decide the weights in a step."""
    bf16: bool = False
    accumulate: int = 1
    """Micro-batches of a step."""
    augment: Sequence[str] = ()
    """How images are changed at random; held-out examples stay as they are."""
    fixed_memory: bool = False
    """Whether rows lie in the same memory in every step."""
    values: dict[str, Tensor] = field(default_factory=dict)
    """Mean losses of the current step, on the device."""
    _part: int | None = None
    """The number of the current micro-batch; None for the whole step."""

    def __post_init__(self) -> None:
        """Add the streams `basis` and, if there are judges, `JUDGES`, which read primary data."""
        self._tasks = {"primary": self.primary_task, "basis": self.primary_task, **self.tasks}
        if self.judges is not None:
            self._tasks[JUDGES] = replace(self.primary_task, examples=self.judges)
            self.sizes[JUDGES] = min(MOST_JUDGES, len(self.judges))
        self.rows = Batches(
            self.name,
            self.seed,
            self._tasks,
            self.sizes,
            self.device if self.fixed_memory else None,
        )

    def load(self, step: int) -> None:
        """Go to a step."""
        self.values = {}
        self.rows.load(step)

    @property
    def micro(self) -> Sequence[Streams]:
        """Equal parts of the step: the mean of their losses is the loss of the step.

        They are shallow copies, so they share `values` and the rows of the step.
        """
        if self.accumulate == 1:
            return [self]
        parts = [copy(self) for _ in range(self.accumulate)]
        for number, part in enumerate(parts):
            part._part = number
        return parts

    @property
    def auxiliary_examples(self) -> int:
        """How many auxiliary examples the step or the micro-batch has."""
        examples = sum(self.sizes[name] for name in self.tasks)
        if self._part is None:
            return examples
        return examples // self.accumulate

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        """Per-example primary losses, as `StepLosses` says; their mean is noted in `values`."""
        losses = self._losses("primary", detach=detach, count=count)
        self._note("loss/primary", losses.detach().mean())
        return losses

    def auxiliary(self) -> dict[str, Tensor]:
        """Mean loss of each source that takes part; it is also noted in `values`."""
        losses = {}
        for name, task in self.tasks.items():
            if not task.silent:
                losses[name] = self._losses(name).mean()
                self._note(f"loss/auxiliary/{name}", losses[name].detach())
        return losses

    def _note(self, name: str, loss: Tensor) -> None:
        """Keep a mean loss of the step; the losses of its micro-batches add up."""
        if self._part is None:
            self.values[name] = loss
        else:
            self.values[name] = self.values.get(name, 0.0) + loss / self.accumulate

    def basis(self) -> Tensor:
        """Per-example primary losses of the batch that only the basis reads."""
        return self._losses("basis")

    def judge(self) -> Tensor:
        """Return the losses of the step's held-out examples; drawing them does not change the
        random numbers of the step.
        """
        return self.losses(
            self._tasks[JUDGES],
            self.rows.rows(JUDGES),
            width=self.rows.width(JUDGES),
            stream=JUDGES,
        )

    def _losses(self, stream: str, *, detach: bool = False, count: int | None = None) -> Tensor:
        """Per-example losses of a stream in this step or micro-batch, after seeding torch for it.

        `detach` trains the head alone. `count` takes only so many examples from the beginning.
        """
        rows = self.rows.rows(stream)
        source_of_seed: list[int | str] = [self.seed, self.name, stream, self.rows.step]
        if self._part is not None:
            rows = rows.chunk(self.accumulate)[self._part]
            source_of_seed.append(self._part)
        if not self.fixed_memory:
            # Dropout and masks depend on the step alone: no state to save, and all strategies see
            # the same noise. On a CPU torch.manual_seed takes longer than a small step: it formats
            # stack traces for all accelerators.
            seed = mix(*source_of_seed)
            if self.device.type == "cpu":
                torch.default_generator.manual_seed(seed)
            else:
                torch.manual_seed(seed)
        width = self.rows.width(stream)
        return self.losses(
            self._tasks[stream], rows[:count], detach=detach, width=width, stream=stream
        )

    def losses(
        self,
        task: Task,
        rows: Tensor,
        *,
        detach: bool = False,
        width: int | None = None,
        stream: str = "primary",
    ) -> Tensor:
        """Per-example losses of the examples `rows` of a task; texts are cut to `width` tokens.

        `stream` names the batch in errors; only held-out examples (`JUDGES`) are never augmented.
        """
        inputs, targets = task.examples.take(rows, width)
        inputs = inputs.to(self.device, non_blocking=True)
        if targets is not None:
            targets = targets.to(self.device, non_blocking=True)
        if self.augment and stream != JUDGES:
            inputs = augmented(inputs, self.augment)
        with _enough_for_batch_norm(stream, f"training.{self.name}"), self.autocast():
            return per_example_losses(self.model, task, inputs, targets, detach=detach)

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in bfloat16 inside the block where the job asks for it."""
        if self.bf16:
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()


@contextmanager
def _enough_for_batch_norm(stream: str, phase: str) -> Iterator[None]:
    """If BatchNorm gets a single example inside the block, raise an InputError that names the
    setting of the batch.

    `phase` is the section of its settings, such as training.guided.
    """
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        setting = f"{phase}.batch_size"
        if stream == "primary":
            setting = f"{phase}.primary_batch"
        elif stream == "basis":
            setting = "strategy.basis_batch"
        elif stream == JUDGES:
            setting = "data.primary.validation"
        problem = "BatchNorm cannot compute statistics from one example"
        advice = "raise it, or choose a model without BatchNorm"
        raise InputError(f"{setting}: {problem} of {stream.strip()}; {advice}") from error
