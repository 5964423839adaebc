"""A task: its examples on the device, the order in which they are seen, and its per-example losses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Objective = Literal["classify", "multi_label", "masked_lm"]


def mix(*parts: int | str) -> int:
    """A 63-bit seed from the parts; different parts give unrelated seeds, on every machine the same."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass
class Examples:
    """Inputs (uint8 images n x C x H x W, or token numbers n x L) with targets (n, or n x labels; None without)."""

    inputs: Tensor
    targets: Tensor | None

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def to(self, device: torch.device) -> Examples:
        return Examples(self.inputs.to(device), None if self.targets is None else self.targets.to(device))

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.inputs[rows], None if self.targets is None else self.targets[rows]


@dataclass
class Task:
    """What is to be learned from a set of examples. Its head has its own name, or is that of the primary task."""

    name: str
    objective: Objective
    classes: list[str]
    examples: Examples
    shares_head: bool = False

    @property
    def head(self) -> str:
        return "primary" if self.shares_head else self.name


@dataclass
class Order:
    """An endless walk through n examples, a new permutation in every epoch, that can be entered at any step.

    It depends on the seed and the name of the stream alone, so all strategies of a seed see the same batches, and a
    resumed run needs to remember only the number of its step.
    """

    n: int
    seed: int
    stream: str
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _epochs: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def batch(self, step: int, size: int) -> Tensor:
        """Rows of the `step`-th batch, counted from 0."""
        start, pieces = step * size, []
        while size > 0:
            epoch, offset = divmod(start, self.n)
            piece = self._permutation(epoch)[offset : offset + size]
            pieces.append(piece)
            start, size = start + len(piece), size - len(piece)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            generator = torch.Generator().manual_seed(mix(self.seed, self.stream, epoch))
            # Only the last epochs are kept; a batch may lie across two.
            self._epochs = {key: value for key, value in self._epochs.items() if key >= epoch - 1}
            self._epochs[epoch] = torch.randperm(self.n, generator=generator).to(self.device)
        return self._epochs[epoch]


def per_example_losses(
    model: nn.Module, task: Task, inputs: Tensor, targets: Tensor | None, *, detach: bool = False
) -> Tensor:
    """The vector of losses of a batch. With `detach` only the task's head learns from it."""
    if task.objective == "masked_lm":
        losses: Tensor = model.masked_losses(inputs, task.head)  # type: ignore[operator]
        return losses
    assert targets is not None
    outputs = model(inputs, head=task.head, detach=detach).float()
    if task.objective == "multi_label":
        return F.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="none").mean(1)
    return F.cross_entropy(outputs, targets, reduction="none")
