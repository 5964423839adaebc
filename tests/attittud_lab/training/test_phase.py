"""One phase: which model is chosen, training that diverges, memory that runs out, and judges."""

import math
from dataclasses import replace

import pytest
import torch

from attittud_lab.config.load import changed, loads
from attittud_lab.errors import InputError
from attittud_lab.models.build import build_model
from attittud_lab.training.optimizer import learning_rate
from attittud_lab.training.phase import DivergedError, Phase
from attittud_lab.training.train import load_data, run
from tests.helpers.commands import JOB
from tests.helpers.runs import job

__all__ = ["job"]  # fixtures


@pytest.mark.parametrize("metric", ["accuracy", "auc"])
def test_the_metric_chooses_the_model_and_the_loss_among_equals(job, metric):
    """The smallest loss is elsewhere than the best figure, which occurs twice."""
    looks = [(0.6, 0.5), (0.8, 0.9), (0.8, 0.7), (0.7, 0.1), (0.8, 0.8), (0.5, 0.6)]
    others = {
        name: 0.9 - 0.1 * number for number, name in enumerate(("accuracy", "macro_f1", "auc"))
    }
    config = changed(job, ["training.guided.evaluations=6", "strategy=primary_only"])
    data = load_data(config)
    model = build_model(config.model, data, 0)
    phase = Phase("guided", config, data, model, torch.device("cpu"), metric)
    seen = []

    def look() -> dict[str, float]:
        figure, loss = looks[len(seen)]
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return {**others, metric: figure, "loss": loss}

    phase.measure = look
    phase.run(lambda _: None, lambda: None, lambda *_: None)
    assert phase.finish() == {**others, metric: 0.8, "loss": 0.7} and phase.state.best_step == 6
    assert all(torch.equal(tensor, seen[2][name]) for name, tensor in model.state_dict().items())
    assert not all(
        torch.equal(tensor, seen[3][name]) for name, tensor in model.state_dict().items()
    )


@pytest.mark.parametrize(
    "changes",
    [
        ["strategy=flip", "training.guided.lr=3e38"],
        [
            "strategy=bloop",
            "training.guided.lr=1e20",
            "training.guided.select=last",
            "training.mode=joint",
        ],
    ],
)
def test_training_that_diverges_ends_with_a_sentence(job, changes, tmp_path):
    found = changed(job, changes[:1] + [change for change in changes[1:] if ".lr=" not in change])
    lr = next(float(change.partition("=")[2]) for change in changes if ".lr=" in change)
    found = replace(
        found,
        training=replace(found.training, guided=replace(found.training.guided, lr=lr, clip=None)),
    )
    with pytest.raises(DivergedError, match=r"training\.guided\.lr"):
        run(found, run_dir=tmp_path)
    assert not (tmp_path / "result.json").exists()
    assert not (tmp_path / "weights.safetensors").exists()


def test_running_out_of_memory_is_explained(job, tmp_path, monkeypatch):
    def full(_: Phase) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(Phase, "_update", full)
    with pytest.raises(InputError, match=r"training\.guided\.accumulate"):
        run(job, run_dir=tmp_path)


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_model_that_is_not_finite_is_never_chosen(job, broken):
    """Also where its accuracy is the highest so far, as that of constant answers may be."""
    config = changed(job, ["training.guided.evaluations=3", "strategy=primary_only"])
    data = load_data(config)
    model, cpu = build_model(config.model, data, 0), torch.device("cpu")
    phase = Phase("guided", config, data, model, cpu, "accuracy")
    losses = [math.nan if number == broken else 1.0 for number in range(3)]
    looks = [{"accuracy": 0.5 + 0.1 * n, "loss": loss} for n, loss in enumerate(losses)]
    phase.measure = iter(looks).__next__
    if broken == 2:
        phase.run(lambda _: None, lambda: None, lambda *_: None)
        assert phase.finish() == {"accuracy": 0.6, "loss": 1.0} and phase.state.best_step == 8
    else:
        with pytest.raises(DivergedError, match=rf"step {4 * broken + 4} of phase guided"):
            phase.run(lambda _: None, lambda: None, lambda *_: None)


def test_validation_examples_can_be_the_judges(tmp_path):
    """Neither training nor test examples judge."""
    config = loads(JOB, ["strategy.name=auto", f"output={tmp_path}"])
    data = load_data(config)
    model = build_model(config.model, data, 0)
    judges = Phase("guided", config, data, model, torch.device("cpu"), "accuracy").streams.judges
    assert judges is not None and torch.equal(judges.inputs, data.validation.inputs)
    other = loads(JOB, ["strategy.name=flip", f"output={tmp_path}"])
    assert (
        Phase("guided", other, data, model, torch.device("cpu"), "accuracy").streams.judges is None
    )


def test_judges_are_used_as_often_as_configured(tmp_path):
    """The judges are asked in every third step, not the training batch."""
    settings = ["strategy.judge_every=3", "training.guided.steps=24", f"output={tmp_path}"]
    settings.append("training.guided.accumulate=2")
    config = loads(JOB, settings)
    data = load_data(config)
    phase = Phase(
        "guided", config, data, build_model(config.model, data, 0), torch.device("cpu"), "accuracy"
    )
    heard, judge = [], phase.streams.judge

    def spy():
        heard.append(phase.state.step)
        return judge()

    phase.streams.judge = spy
    for _ in range(8):
        phase.step()
    assert heard == [0, 3, 6]


@pytest.mark.parametrize(
    ("schedule", "later"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.775, 0.55, 0.1]),
        ("cosine", [1, 0.55 + 0.45 * math.sqrt(0.5), 0.55, 0.1]),
    ],
)
def test_the_learning_rate_rises_before_its_schedule_begins(job, schedule, later):
    changes = {"lr": 1.0, "lr_min": 0.1, "warmup": 4, "schedule": schedule}
    config = replace(job.training.guided, **changes)
    rates = [learning_rate(config, step, 12, 1.0) for step in (0, 1, 2, 3, 4, 6, 8, 12)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, *later])
