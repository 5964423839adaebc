"""The strategy `channel`: training labels alone translate, and closed sources have no effect."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attittud_lab
from attittud import LabelChannel
from attittud_lab.config.load import loads
from attittud_lab.data.tasks import Examples, Task, per_example_losses
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from attittud_lab.report.collect import collect
from attittud_lab.runs.folder import load_checkpoint
from attittud_lab.strategies import make_strategy
from attittud_lab.training import channels, train
from tests.helpers.interrupted_runs import killed_at_first_checkpoint, outcome
from tests.helpers.simple_jobs import table_job


@pytest.fixture
def config(tmp_path):
    """Three classes; one source has the same ones, another has others."""
    text = table_job(tmp_path).replace("train: 90, validation: 0", "train: 60, validation: 30")
    job = text.replace("steps: 6,", "steps: 6, evaluations: 3,") + "checkpoint_every: 1\n"
    return loads(job, ["strategy=channel"])


class Linear(nn.Module):
    """One output layer for all tasks."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, head, detach=False):
        assert head == "primary"
        return self.layer(x)


class Step:
    """The losses of one step."""

    def __init__(self, model, primary, auxiliary):
        self.model, self.tasks, self.first = model, auxiliary, primary
        self.micro = [self]

    def losses(self, task):
        return per_example_losses(self.model, task, task.examples.inputs, task.examples.targets)

    def primary(self, **_):
        return self.losses(self.first)

    def auxiliary(self):
        return {task.name: self.losses(task).mean() for task in self.tasks if not task.silent}


def tasks():
    torch.manual_seed(0)
    matrix = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.2, 0.5, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    channel = LabelChannel(matrix, 0.9, torch.full((4,), 0.25))
    labelled = Examples(torch.randn(8, 4), torch.arange(8) % 3)
    primary = Task("primary", "classify", list("abc"), labelled)
    examples = Examples(torch.randn(10, 4), torch.arange(10) % 4)
    web = Task("web", "classify", list("klmn"), examples, shares_head=True, channel=channel)
    return primary, web, matrix


def test_a_step_has_the_gradient_of_the_formula():
    primary, web, matrix = tasks()
    model = Linear()
    config = loads("strategy: channel").strategy
    strategy = make_strategy(config, model, weights={"web": 0.5}, seed=0)
    strategy.step(Step(model, primary, [web]))

    weight = model.layer.weight.detach().double().requires_grad_()
    bias = model.layer.bias.detach().double()
    logits = primary.examples.inputs.double() @ weight.T + bias
    of_primary = F.cross_entropy(logits, primary.examples.targets)
    likely = (web.examples.inputs.double() @ weight.T + bias).softmax(1)
    evidence = (likely * matrix.double()[:, web.examples.targets].T).sum(1)
    (of_primary - 0.5 * evidence.log().mean()).backward()
    torch.testing.assert_close(model.layer.weight.grad.double(), weight.grad, rtol=1e-5, atol=1e-7)


def test_closed_channels_leave_primary_only(config, tmp_path, monkeypatch):
    def closed(_log_probs, _labels, shares, *, classes, **_):
        return LabelChannel(shares.expand(classes, -1), 0.0, shares)

    monkeypatch.setattr(LabelChannel, "estimate", closed)
    weights = []
    for name in ("channel", "primary_only"):
        train.run(config, strategy=name, run_dir=tmp_path / name)
        weights.append(attittud_lab.load(tmp_path / name).module.state_dict())
    first, second = weights
    assert first.keys() >= second.keys()
    assert all(torch.equal(first[name], tensor) for name, tensor in second.items())


def test_only_training_labels_decide(config):
    data = train.load_data(config)
    changed = replace(
        data,
        validation=replace(data.validation, targets=data.validation.targets.flip(0)),
        test=replace(data.test, targets=data.test.targets.flip(0), inputs=data.test.inputs + 9),
    )
    examples = data.primary.examples
    examples = replace(examples, targets=(examples.targets + 1) % 3)
    turned = replace(data, primary=replace(data.primary, examples=examples))
    first, same, other = (
        channels.estimate(config, one, Progress()).by_source["more"].matrix
        for one in (data, changed, turned)
    )
    assert torch.equal(first, same)
    # The source never sees primary labels: renamed classes are the same matrix in another order.
    torch.testing.assert_close(other.roll(-1, 0), first, rtol=0, atol=0.05)


def test_an_interrupted_run_continues_with_its_channels(config, tmp_path, monkeypatch):
    train.run(config, run_dir=tmp_path / "whole")
    with killed_at_first_checkpoint():
        train.run(config, run_dir=tmp_path / "parts")
    monkeypatch.setattr(train, "estimate", lambda *_: pytest.fail("estimated again"))
    train.run(config, run_dir=tmp_path / "parts")
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_a_run_says_how_open_its_channels_are_and_predicts(config, tmp_path):
    result = train.run(config, run_dir=tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["channels"].keys() == {"more", "other"}
    assert about["channels"]["more"] > 0.5, "its labels are right"
    assert "more" in about["remark"]
    state = load_checkpoint(tmp_path / "run" / "channels.safetensors")
    matrix = channels.Channels.restore(state).by_source["other"].matrix
    assert matrix.shape == (3, 2)
    assert "more" in " ".join(collect(tmp_path / "run", 100)["decision"]["meaning"])
    model = attittud_lab.load(tmp_path / "run")
    rows = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    assert len(model.predict([{"v": row.tolist()} for row in rows])) == 5
    assert 0 < result.test["accuracy"] <= 1


def test_several_and_missing_labels(tmp_path):
    """Each pair of a primary and an auxiliary label has a channel of its own."""
    random = np.random.default_rng(0)
    v = random.normal(size=(150, 4))
    labels = (v[:, :3] > 0).astype(int)
    part = {"own": slice(0, 90), "more": slice(90, 150)}
    for name, rows in part.items():
        columns = {"v": v[rows].tolist(), "labels": labels[rows].tolist()}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    job = f"""
    data:
      kind: table
      table: {{columns: [v]}}
      primary: {{path: {tmp_path}/own.parquet, train: 40, validation: 20, test: 30}}
      auxiliary: {{more: {{path: {tmp_path}/more.parquet}}}}
    model: {{name: table-mlp, width: 8}}
    training: {{mode: joint, guided: {{steps: 4, primary_batch: 8, batch_size: 8}}}}
    strategy: channel
    output: {tmp_path}/runs
    """
    config = loads(job)
    data = train.load_data(config)
    more = data.auxiliary["more"]
    targets = more.examples.targets.clone()
    targets[:9] = -1
    targets[9:12, 0] = -1
    more = replace(more, examples=replace(more.examples, targets=targets))
    data = replace(data, auxiliary={"more": more})
    channel = channels.estimate(config, data, Progress()).by_source["more"]
    assert channel.matrix.shape == (3, 3, 2, 2)
    own = channel.openness.diagonal()
    assert own.min() > 0.5, "a label says most about itself"
    result = train.run(config, run_dir=tmp_path / "run", data=data)
    assert 0 < result.test["auc"] <= 1


def test_what_cannot_be_translated_is_refused(config):
    changed = loads("strategy: {name: channel, eta: {neutral: 1, helpful: 1, harmful: 0}}")
    with pytest.raises(InputError, match=r"strategy\.eta"):
        make_strategy(changed.strategy, nn.Linear(1, 1), weights={}, seed=0)
    data = train.load_data(config)
    without = {name: replace(task, objective="masked_lm") for name, task in data.auxiliary.items()}
    with pytest.raises(InputError, match="channel"):
        channels.estimate(config, replace(data, auxiliary=without), Progress())
