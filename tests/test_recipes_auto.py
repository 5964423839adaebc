"""Strategy auto: who judges when, that a run with it resumes bit by bit, and what the report says of it."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from attittud.recipes.digits.data import digits
from attittud.recipes.digits.rows import ROWS
from attittud.recipes.digits.train import Settings, set_apart, train
from attittud.recipes.errors import InputError
from attittud.recipes.loader import loads
from attittud.recipes.models.build import build_model
from attittud.recipes.report.curves import curves
from attittud.recipes.streams import MOST_JUDGES, Apart, Streams
from attittud.recipes.tasks import Examples, Task
from attittud.recipes.train import load_data, make_phase, run

CLASSES = 4


class Spy(nn.Module):
    """Its losses are not looked at, but which examples it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, CLASSES))
        self.seen: set[int] = set()

    def forward(self, x: torch.Tensor, head: str, detach: bool = False) -> torch.Tensor:
        self.seen = set(x[:, 0].int().tolist())
        return x * self.weight


def streams(examples: int = 60, batch: int = 16, share: float = 0.2, until: int = 10, held: bool = False) -> Streams:
    numbers = torch.arange(examples)
    task = Task(
        "primary", "classify", [str(c) for c in range(CLASSES)], Examples(numbers[:, None].float(), numbers % CLASSES)
    )
    apart = Apart.of(task.examples, share, until, seed=3)
    return Streams(Spy(), task, {}, "guided", 3, batch, {}, None, torch.device("cpu"), apart=apart, held=held)


@pytest.mark.parametrize("held", [False, True], ids=["", "rows held for a CUDA graph"])
def test_who_judges(held):
    found = streams(held=held)
    assert found.apart is not None
    judges = set(found.apart.judges.tolist())
    assert len(judges) == 12 and judges.isdisjoint(found.apart.others.tolist())
    assert torch.bincount(found.apart.judges % CLASSES).tolist() == [3] * CLASSES  # of all classes alike
    trained = set()
    for step in range(30):
        found.load(step)
        assert found.judging
        found.primary()
        batch = set(found.model.seen)
        assert 8 <= len(batch) <= 16  # across two epochs an example may come twice
        trained |= batch
        if step < 10:
            assert batch.isdisjoint(judges)
        found.judge()
        assert found.model.seen == judges if step < 10 else len(found.model.seen) == 32
        assert found.model.seen.isdisjoint(batch)
    assert trained == set(range(60))


def test_where_everybody_is_in_the_batch_nobody_judges_later():
    found = streams(batch=60)
    found.load(9)
    assert found.judging
    found.load(10)
    assert not found.judging


def test_number_of_judges():
    many = Examples(torch.zeros(10_000, 1), torch.arange(10_000) % CLASSES)
    assert len(Apart.of(many, 0.2, 5, 0).judges) == MOST_JUDGES


@pytest.mark.parametrize("labels", [[0] * 11 + [1], [0] * 10 + [1] * 2, [0, 0, 1, 1], list(range(8)) * 2])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_judges_leave_an_example_of_every_class(labels, share):
    targets = torch.tensor(labels)
    apart = Apart.of(Examples(torch.zeros(len(labels), 1), targets), share, 5, 0)
    assert len(apart.judges) >= 2 and set(targets[apart.others].tolist()) == set(labels)
    assert sorted([*apart.judges.tolist(), *apart.others.tolist()]) == list(range(len(labels)))


def test_too_few_labels_for_judges():
    assert Apart.of(Examples(torch.zeros(4, 1), torch.tensor([0, 1, 2, 2])), 0.2, 5, 0) is None


def test_the_basis_batch_is_at_most_what_judges_leave():
    """Beside 12 of 60 judges there are 48 others; no example shall count twice."""
    config = loads(JOB, ["strategy.basis_batch=60"])
    data = load_data(config)
    model = build_model(config.model, data, 0)
    found = make_phase("guided", config, data, model, torch.device("cpu"), "accuracy").streams
    assert found.apart is not None and len(found.apart.judges) == 12
    assert len(found.basis()) == 48 == len(set(found._batch("basis", 0).tolist()))


JOB = """
data:
  primary: {path: digits, train: 60, validation: 40, test: 60}
  auxiliary: {more: {path: digits, examples: 200}, less: {path: digits, examples: 100}}
model: {name: mlp, width: 8}
training:
  guided: {steps: 24, evaluations: 4, primary_batch: 16, batch_size: 16, lr: 0.02}
  finetune: {steps: 4, evaluations: 2, primary_batch: 16}
log_every: 2
checkpoint_every: 3
"""


def test_a_run(tmp_path: Path):
    config = loads(JOB)
    assert config.strategy.name == "auto"  # the default
    run(config, run_dir=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["phase"] == "guided" and "loss/primary" in line]
    for source in ("more", "less"):
        for part in ("neutral", "helpful", "harmful"):
            weights = [line[f"attittud/{source}/weight_{part}"] for line in logged]
            assert all(0 <= w <= 1 for w in weights)
        assert all(math.isfinite(line[f"attittud/{source}/score_auxiliary"]) for line in logged)
    series = curves([tmp_path], 100)["train"]
    assert "attittud/more/weight_neutral" in series


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.primary.train=10", r"strategy auto sets at least 2.*which 10 examples.*compare.strategies"),
        ("strategy.eta={neutral: 1}", "strategy auto finds the weights itself"),
    ],
)
def test_mistakes(change, message, tmp_path):
    with pytest.raises(InputError, match=message):
        run(loads(JOB, [change]), run_dir=tmp_path)


def test_the_demo_sets_two_of_each_class_apart_for_half_of_the_steps():
    data, row = digits("right", 0), next(row for row in ROWS if row.name == "auto")

    class Due:
        eta, judge_due = "auto", True

    (x, y), (_, judges) = set_apart(data, Due(), 0, 0, 100)
    assert torch.bincount(judges).tolist() == [2] * 10 and len(x) == len(y) == 80
    (_, y), (_, judges) = set_apart(data, Due(), 0, 50, 100)
    assert (len(y), len(judges)) == (80, 20)
    Due.judge_due = False
    (_, y), judges = set_apart(data, Due(), 0, 51, 100)
    assert len(y) == 100 and judges is None
    Due.eta = None
    (_, y), judges = set_apart(data, Due(), 0, 0, 100)
    assert len(y) == 100 and judges is None
    train(row, data, 0, Settings(steps=12))
