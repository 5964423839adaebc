"""The batches of a step: judges never train, and a basis has its own batch."""

import pytest
import torch
from torch import nn

from attittud_lab.data.tasks import Examples, Task
from attittud_lab.training.streams import JUDGES, MOST_JUDGES, Streams

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


def streams(judges: int = 100, held: bool = False, basis_batch: int | None = None) -> Streams:
    """60 numbered examples to train on; the judges have negative numbers."""
    trained, judging = torch.arange(60), -1 - torch.arange(judges)
    examples = [
        Examples(numbers[:, None].float(), numbers % CLASSES) for numbers in (trained, judging)
    ]
    task = Task("primary", "classify", [str(c) for c in range(CLASSES)], examples[0])
    sizes, cpu = {"primary": 16, "basis": basis_batch or 16}, torch.device("cpu")
    return Streams(Spy(), task, {}, sizes, "guided", 3, cpu, judges=examples[1], held=held)


@pytest.mark.parametrize("held", [False], ids=[""])
def test_judges_never_train_and_alternate(held):
    found = streams(held=held)
    seen = set()
    for step in range(4):
        found.load(step)
        found.primary()
        assert min(found.model.seen) >= 0
        found.judge()
        assert (
            32 <= len(found.model.seen) <= MOST_JUDGES
        )  # across two turns an example may come twice
        assert max(found.model.seen) < 0
        seen |= found.model.seen
    assert len(seen) == 100


@pytest.mark.parametrize("held", [False], ids=[""])
def test_a_basis_has_its_own_batch(held):
    """It has as many examples as asked for, drawn independently of the examples of the step."""
    found = streams(held=held, basis_batch=20)
    same = 0
    for step in range(4):
        found.load(step)
        found.primary()
        primary = found.model.seen
        assert len(found.basis()) == 20 and min(found.model.seen) >= 0
        same += len(primary & found.model.seen)
    assert same < 4 * 10  # 5.3 of 16 by chance in each


def test_batches_of_judges_mix_text_lengths():
    """Texts of a batch are, so that they can be cut short, but such judges would not represent the
    others.
    """
    lengths = torch.arange(200)
    tokens = Examples(torch.ones(200, 200, dtype=torch.long), torch.arange(200) % CLASSES, lengths)
    task = Task("primary", "classify", [str(c) for c in range(CLASSES)], tokens)
    sizes = {"primary": 16, "basis": 16}
    found = Streams(Spy(), task, {}, sizes, "guided", 3, torch.device("cpu"), judges=tokens)
    trained, judging = (lengths[found.rows.rows(name)] for name in ("primary", JUDGES))
    assert trained.max() - trained.min() < 40
    assert judging.max() - judging.min() > 150
