"""Strategy auto: who judges when, and what the report says of it."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from attittud_lab.config.load import loads
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.errors import InputError
from attittud_lab.models.network import build_model
from attittud_lab.report.collect import curves
from attittud_lab.training.phase import FEW_JUDGES, Phase
from attittud_lab.training.streams import JUDGES, MOST_JUDGES, Streams
from attittud_lab.training.train import load_data, run

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


def streams(judges: int = 100, held: bool = False, basis_batch: int | None = None) -> Streams:
    """60 examples to train on, numbered; those who judge have negative numbers."""
    trained, judging = torch.arange(60), -1 - torch.arange(judges)
    examples = [Examples(numbers[:, None].float(), numbers % CLASSES) for numbers in (trained, judging)]
    task = Task("primary", "classify", [str(c) for c in range(CLASSES)], examples[0])
    sizes, cpu = {"primary": 16, "basis": basis_batch or 16}, torch.device("cpu")
    return Streams(Spy(), task, {}, sizes, "guided", 3, cpu, judges=examples[1], held=held)


@pytest.mark.parametrize("held", [False, True], ids=["", "rows held for a CUDA graph"])
def test_judges_never_train_and_take_turns(held):
    found = streams(held=held)
    seen = set()
    for step in range(4):
        found.load(step)
        found.primary()
        assert min(found.model.seen) >= 0
        found.judge()
        assert 32 <= len(found.model.seen) <= MOST_JUDGES  # across two turns an example may come twice
        assert max(found.model.seen) < 0
        seen |= found.model.seen
    assert len(seen) == 100


@pytest.mark.parametrize("held", [False, True], ids=["", "rows held for a CUDA graph"])
def test_a_basis_has_a_batch_of_its_own(held):
    """As many as asked for, drawn apart from those whose gradient is judged by it."""
    found = streams(held=held, basis_batch=20)
    same = 0
    for step in range(4):
        found.load(step)
        found.primary()
        primary = found.model.seen
        assert len(found.basis()) == 20 and min(found.model.seen) >= 0
        same += len(primary & found.model.seen)
    assert same < 4 * 10  # 5.3 of 16 by chance in each


def test_few_judges_are_all_heard():
    found = streams(judges=10)
    found.load(7)
    found.judge()
    assert len(found.model.seen) == 10


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


def test_validation_examples_judge(tmp_path):
    """Not those that the model is trained on, nor any that test it."""
    config = loads(JOB, ["strategy.name=auto", f"output={tmp_path}"])
    data = load_data(config)
    model = build_model(config.model, data, 0)
    judges = Phase("guided", config, data, model, torch.device("cpu"), "accuracy").streams.judges
    assert judges is not None and torch.equal(judges.inputs, data.validation.inputs)
    other = loads(JOB, ["strategy.name=flip", f"output={tmp_path}"])
    assert Phase("guided", other, data, model, torch.device("cpu"), "accuracy").streams.judges is None


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_guide_hears_the_judges_when_it_is_told_to(tmp_path, accumulate):
    """Every third step, and them: not the batch that trains."""
    settings = ["strategy.judge_every=3", f"training.guided.accumulate={accumulate}", f"output={tmp_path}"]
    config = loads(JOB, settings)
    data = load_data(config)
    phase = Phase("guided", config, data, build_model(config.model, data, 0), torch.device("cpu"), "accuracy")
    heard, judge = [], phase.streams.judge

    def spy():
        heard.append(phase.state.step)
        return judge()

    phase.streams.judge = spy
    for _ in range(8):
        phase.step()
    assert heard == [0, 3, 6]


def test_judges_are_not_of_similar_lengths():
    """As the texts of a batch are, so that they can be cut short: such judges would not speak for the others."""
    lengths = torch.arange(200)
    tokens = Examples(torch.ones(200, 200, dtype=torch.long), torch.arange(200) % CLASSES, lengths)
    task = Task("primary", "classify", [str(c) for c in range(CLASSES)], tokens)
    sizes = {"primary": 16, "basis": 16}
    found = Streams(Spy(), task, {}, sizes, "guided", 3, torch.device("cpu"), judges=tokens)
    trained, judging = (lengths[found.rows.rows(name)] for name in ("primary", JUDGES))
    assert trained.max() - trained.min() < 40
    assert judging.max() - judging.min() > 150


@pytest.mark.parametrize("count", [FEW_JUDGES - 1, FEW_JUDGES])
def test_few_judges_are_told_of(count, caplog):
    config = loads(JOB, [f"data.primary.validation={count}"])
    data = load_data(config)
    with caplog.at_level("WARNING", "attittud"):
        Phase("guided", config, data, build_model(config.model, data, 0), torch.device("cpu"), "accuracy")
    told = [message for message in caplog.messages if "strategy auto" in message]
    assert len(told) == (count < FEW_JUDGES)
    assert all(f"there are only {count}" in message and "data.primary.validation" in message for message in told)


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


def test_weights_are_not_given(tmp_path):
    with pytest.raises(InputError, match="strategy auto finds the weights itself"):
        run(loads(JOB, ["strategy.eta={neutral: 1}"]), run_dir=tmp_path)
