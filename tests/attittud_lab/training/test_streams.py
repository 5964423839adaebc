"""The batches of a step: judges never train, and a basis has its own batch."""

import pytest
import torch
from torch import nn

from attittud_lab.data.tasks import Examples, Task
from attittud_lab.training.streams import MOST_JUDGES, Streams

CLASSES = 4


class Spy(nn.Module):
    """A model that records the examples it is given; its losses do not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, CLASSES))
        self.seen: set[int] = set()

    def forward(self, x: torch.Tensor, head: str, detach: bool = False) -> torch.Tensor:
        self.seen = set(x[:, 0].int().tolist())
        return x * self.weight


def streams() -> Streams:
    """60 numbered examples to train on; the judges have negative numbers."""
    trained, judging = (
        Examples(numbers[:, None].float(), numbers % CLASSES)
        for numbers in (torch.arange(60), -1 - torch.arange(100))
    )
    task = Task("primary", "classify", list("0123"), trained)
    sizes, cpu = {"primary": 16, "basis": 16}, torch.device("cpu")
    return Streams(Spy(), task, {}, sizes, "guided", 3, cpu, judges=judging)


def test_judges_never_train_and_alternate():
    found = streams()
    seen = set()
    for step in range(4):
        found.load(step)
        found.primary()
        assert min(found.model.seen) >= 0
        found.judge()
        # across two turns an example may come twice
        assert 32 <= len(found.model.seen) <= MOST_JUDGES
        assert max(found.model.seen) < 0
        seen |= found.model.seen
    assert len(seen) == 100


def test_losses_of_micro_batches_add_up_to_the_loss_of_the_step():
    def logged(accumulate: int) -> dict[str, float]:
        one = streams()
        one.accumulate = accumulate
        one.load(3)
        for part in one.micro:
            part.primary()
        return {name: float(value) for name, value in one.values.items()}

    assert logged(4) == pytest.approx(logged(1))
