"""One phase: which model is chosen, training that diverges, memory that runs out, and judges."""

import math
from dataclasses import replace

import pytest
import torch

from attittud_lab.config.load import changed, loads
from attittud_lab.errors import InputError
from attittud_lab.training.optimizer import learning_rate
from attittud_lab.training.phase import DivergedError, Phase
from attittud_lab.training.train import load_data, run
from tests.helpers.commands import JOB
from tests.helpers.runs import job, phase_of

__all__ = ["job"]  # fixtures


def test_the_metric_chooses_the_model_and_the_loss_among_equals(job):
    """The smallest loss is elsewhere than the best figure, which occurs twice."""
    looks = [(0.6, 0.5), (0.8, 0.9), (0.8, 0.7), (0.7, 0.1), (0.8, 0.8), (0.5, 0.6)]
    others = {"accuracy": 0.9, "macro_f1": 0.8}
    phase = phase_of(
        changed(job, ["training.guided.evaluations=6", "strategy=primary_only"]), "auc"
    )
    weights = phase.model.heads["primary"].weight
    seen = []

    def look() -> dict[str, float]:
        figure, loss = looks[len(seen)]
        seen.append(weights.detach().clone())
        return {**others, "auc": figure, "loss": loss}

    phase.measure = look
    phase.run(lambda _: None, lambda: None, lambda *_: None)
    assert phase.finish() == {**others, "auc": 0.8, "loss": 0.7} and phase.state.best_step == 6
    assert torch.equal(weights, seen[2]) and not torch.equal(weights, seen[3])


@pytest.mark.parametrize(
    ("lr", "changes"),
    [
        (3e38, ["strategy=flip"]),
        (1e20, ["strategy=bloop", "training.guided.select=last", "training.mode=joint"]),
    ],
)
def test_training_that_diverges_ends_with_a_sentence(job, lr, changes, tmp_path):
    config = changed(job, changes)
    guided = replace(config.training.guided, lr=lr, clip=None)  # beyond what a file may say
    config = replace(config, training=replace(config.training, guided=guided))
    with pytest.raises(DivergedError, match=r"training\.guided\.lr"):
        run(config, run_dir=tmp_path)
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
    phase = phase_of(changed(job, ["training.guided.evaluations=3", "strategy=primary_only"]))
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
    judges = phase_of(config).streams.judges
    assert judges is not None
    assert torch.equal(judges.inputs, load_data(config).validation.inputs)
    assert phase_of(changed(config, ["strategy.name=flip"])).streams.judges is None


def test_judges_are_used_as_often_as_configured(tmp_path):
    """The judges are asked in every third step, not the training batch."""
    settings = ["strategy.judge_every=3", "training.guided.steps=24", f"output={tmp_path}"]
    settings.append("training.guided.accumulate=2")
    phase = phase_of(loads(JOB, settings))
    asked, judge = [], phase.streams.judge

    def spy():
        asked.append(phase.state.step)
        return judge()

    phase.streams.judge = spy
    for _ in range(8):
        phase.step()
    assert asked == [0, 3, 6]


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
