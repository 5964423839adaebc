"""A task: its examples, their order, its objective and its per-example losses."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud import LabelChannel
from attittud_lab.config.schema import Kind
from attittud_lab.errors import InputError, unknown

MOST_REPEATED = 1000
"""The most copies of one example in a batch, far beyond any use."""


def mix(*parts: int | str) -> int:
    """Return a 63-bit seed: different parts give unrelated seeds, the same on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass
class Examples:
    """Inputs (uint8 images n x C x H x W, token numbers n x L or features n x F), and targets (n, n
    x labels or None).
    """

    inputs: Tensor
    targets: Tensor | None
    lengths: Tensor | None = None
    """Tokens of each text, in main memory: batches of similar lengths are made, and cut to
    multiples of `bucket`.
    """
    bucket: int = 1

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def to(self, device: torch.device) -> Examples:
        """Return the examples on a device; the lengths stay in main memory."""
        targets = self.targets
        if targets is not None:
            targets = targets.to(device)
        return replace(self, inputs=self.inputs.to(device), targets=targets)

    def take(self, rows: Tensor, width: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Return inputs and targets of some rows; texts are cut to the first `width` tokens."""
        inputs = self.inputs
        if width is not None:
            inputs = inputs[:, :width]
        if self.targets is None:
            return inputs[rows], None
        return inputs[rows], self.targets[rows]

    def rows(self, rows: Tensor) -> Examples:
        """Return some examples (their rows in main memory) as a set of their own."""
        inputs, targets = self.take(rows.to(self.inputs.device))
        lengths = self.lengths
        if lengths is not None:
            lengths = lengths[rows]
        return replace(self, inputs=inputs, targets=targets, lengths=lengths)

    def parts(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows and the inputs of all examples, in batches of `size`; texts come from short
        to long, and are cut to the longest of a batch.
        """
        if self.lengths is None:
            yield from zip(
                torch.arange(len(self)).split(size), self.inputs.split(size), strict=True
            )
            return
        for rows in self.lengths.argsort(stable=True).split(size):
            yield rows, self.take(rows.to(self.inputs.device), self.width(rows))[0]

    def width(self, rows: Tensor) -> int | None:
        """Return the length that these rows (in main memory) may be cut to; None where there is
        nothing to cut.
        """
        if self.lengths is None:
            return None
        longest = max(1, int(self.lengths[rows].max()))
        rounded_up = math.ceil(longest / self.bucket) * self.bucket
        return min(rounded_up, self.inputs.shape[1])


@dataclass
class Task:
    """What a model learns from a set of examples. A task has a head of its own, or shares the
    primary task's head.
    """

    name: str
    objective: str
    """The name of an objective in the registry below."""
    classes: list[str]
    examples: Examples
    shares_head: bool = False
    packed: bool = False
    """Whether a row may hold several texts."""
    channel: LabelChannel | None = None
    """Through which the primary output layer learns from labels of other classes, or wrong ones."""
    silent: bool = False
    """Whether nothing is learned from it."""

    @property
    def head(self) -> str:
        """The name of the output layer."""
        if self.shares_head:
            return "primary"
        return self.name

    @property
    def several(self) -> bool:
        """Whether an example may have several labels at once."""
        return OBJECTIVES[self.objective].several


def can_share(task: Task, primary: Task) -> bool:
    """Return whether an auxiliary task predicts the primary classes, in whatever order."""
    return task.objective == primary.objective and sorted(task.classes) == sorted(primary.classes)


def share_head(task: Task, primary: Task) -> Task:
    """Return a task that uses the primary output layer, so its targets are numbered in the order of
    the primary classes.
    """
    targets = task.examples.targets
    if task.classes != primary.classes and targets is not None:
        if task.several:
            targets = targets[:, [task.classes.index(name) for name in primary.classes]]
        else:
            numbers = [primary.classes.index(name) for name in task.classes]
            targets = torch.tensor(numbers, device=targets.device)[targets]
    examples = replace(task.examples, targets=targets)
    return replace(task, classes=primary.classes, examples=examples, shares_head=True)


@dataclass
class Order:
    """An endless order of n examples, with a new permutation in every epoch; it can start at any
    step.

    It depends only on the seed and the name of the stream, so all strategies of a seed see the same
    batches, and a resumed run only needs to remember the number of its step. With `lengths`,
    batches have rows of similar lengths; all batches must then have the same size.
    """

    n: int
    seed: int
    stream: str
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    lengths: Tensor | None = None
    _epochs: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def batch(self, step: int, size: int, *, in_memory: bool = False) -> Tensor:
        """Return the rows of the `step`-th batch, counted from 0, on the device; with `in_memory` in
        main memory, without waiting for the device. A batch may span epochs.
        """
        if size > MOST_REPEATED * self.n:
            problem = f"a batch of {self.stream} asks for {size:,} examples"
            advice = f"lower its batch size to at most {MOST_REPEATED * self.n:,}"
            only = f"but there are only {self.n:,}"
            raise InputError(f"{problem}, {only}; {advice}: more only repeats them")
        start = step * size
        end = start + size
        parts = []
        while start < end:
            epoch, offset = divmod(start, self.n)
            order, in_main_memory = self._permutation(epoch, size)
            if in_memory:
                order = in_main_memory
            part = order[offset : offset + end - start]
            parts.append(part)
            start += len(part)
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts)

    def _permutation(self, epoch: int, size: int) -> tuple[Tensor, Tensor]:
        """Return the order of an epoch, on the device and in main memory."""
        if epoch not in self._epochs:
            generator = torch.Generator().manual_seed(mix(self.seed, self.stream, epoch))
            # Only the last epochs are kept; a batch may span two.
            self._epochs = {key: value for key, value in self._epochs.items() if key >= epoch - 1}
            order = torch.randperm(self.n, generator=generator)
            if self.lengths is not None:
                # So many rows complete the last batch of the epoch before.
                begun = -epoch * self.n % size
                order = _by_length(order, self.lengths, size, begun, generator)
            self._epochs[epoch] = (order.to(self.device), order)
        return self._epochs[epoch]


SORTED = 16
"""How many batches are sorted by length together: few, so that an epoch stays in random order."""


def _by_length(
    order: Tensor, lengths: Tensor, size: int, begun: int, generator: torch.Generator
) -> Tensor:
    """Return the same rows, with similar lengths in each batch, and the batches in random order.

    The first `begun` rows belong to a batch that began in the epoch before.
    """
    count = max(0, len(order) - begun) // size
    in_whole_batches = order[begun : begun + count * size]
    batches = []
    for window in in_whole_batches.split(SORTED * size):
        batches += window[lengths[window].argsort(stable=True)].split(size)
    # Also shuffled within a batch, so that its first rows are not its shortest.
    drawn = []
    for number in torch.randperm(count, generator=generator):
        drawn.append(batches[number][torch.randperm(size, generator=generator)])
    return torch.cat([order[:begun], *drawn, order[begun + count * size :]])


def per_example_losses(
    model: nn.Module, task: Task, inputs: Tensor, targets: Tensor | None, *, detach: bool = False
) -> Tensor:
    """Return the losses of a batch (n). With `detach` only the task's head learns from it."""
    if task.channel is not None:
        assert targets is not None
        logits = model(inputs, head=task.head, detach=detach)
        return task.channel.loss(logits, targets, reduction="none")
    return OBJECTIVES[task.objective].losses(model, task, inputs, targets, detach)


Losses = Callable[[nn.Module, Task, Tensor, Tensor | None, bool], Tensor]


@dataclass(frozen=True)
class Objective:
    """How the examples of a source become a task. `objective:` in a configuration names one."""

    losses: Losses
    """The vector of losses of a batch, from the model, the task, its inputs and targets, and
    `detach`.
    """
    labelled: bool = True
    """Whether the examples need labels."""
    kinds: tuple[Kind, ...] = ("image", "text", "table")
    """The examples that it can learn from."""
    blocks: bool = False
    """Whether texts are read whole, in blocks; otherwise only the beginning of each text is
    read.
    """
    several: bool = False
    """Whether an example may have several labels at once, which are a list of 0 and 1."""
    metric: str = "accuracy"
    """The figure that chooses a model where the configuration names none."""
    derived: bool = False
    """Whether it replaces another objective, so that a configuration cannot name it."""


def _classified(
    model: nn.Module, task: Task, inputs: Tensor, targets: Tensor | None, detach: bool
) -> Tensor:
    """Return the cross-entropy of each example: -log softmax(outputs)[target]."""
    assert targets is not None
    outputs = model(inputs, head=task.head, detach=detach).float()
    return F.cross_entropy(outputs, targets, reduction="none")


def _labelled(
    model: nn.Module, task: Task, inputs: Tensor, targets: Tensor | None, detach: bool
) -> Tensor:
    """Return the mean over the labels of the binary cross-entropy of each example."""
    assert targets is not None
    outputs = model(inputs, head=task.head, detach=detach).float()
    return F.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="none").mean(1)


def _masked(
    model: nn.Module, task: Task, inputs: Tensor, _targets: Tensor | None, _detach: bool
) -> Tensor:
    """Return the mean loss over the masked words of each row."""
    losses: Tensor = model.masked_losses(inputs, task.head)  # type: ignore[operator]  # a method, where Module promises tensors and modules
    return losses


OBJECTIVES: dict[str, Objective] = {
    "classify": Objective(_classified),
    "multi_label": Objective(_labelled, several=True, metric="auc", derived=True),
    "masked_lm": Objective(_masked, labelled=False, kinds=("text",), blocks=True),
}
"""Each objective is one entry here; code outside the package adds one by assignment."""


def objective_for(*, several: bool, name: str = "classify") -> str:
    """Return the objective `name`, or the one that replaces it if examples have several labels at
    once.
    """
    if several:
        for other, objective in OBJECTIVES.items():
            if objective.derived and objective.several:
                return other
    return name


def find_objective(name: str, where: str) -> Objective:
    """Return the objective that a configuration names; `where` is the setting."""
    names = [other for other, objective in OBJECTIVES.items() if not objective.derived]
    if name not in names:
        raise unknown(f"objective in {where}:", name, names)
    return OBJECTIVES[name]
