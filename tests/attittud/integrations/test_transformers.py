"""Hugging Face's Trainer: the stock one's losses, the same run after a kill, and refusals."""

import shutil
import signal
from typing import Any

import pytest
import torch
import transformers
from transformers import Trainer

from attittud import Eta, preset
from attittud.integrations.transformers import FOLDER, AttittudTrainer, check_trainer, load_guide
from tests.helpers.processes import exit_code
from tests.helpers.trainers import (
    WARNINGS,
    arguments,
    classifier,
    curve,
    guided,
    llama,
    make_trainer,
    sequences,
    summed,
)

pytestmark = WARNINGS


def classes(count: int, seed: int) -> list[dict[str, Any]]:
    data = sequences(count, steps=[1, -1], seed=seed)
    return [{**row, "labels": torch.tensor(int(row["input_ids"][0]) % 3)} for row in data]


@pytest.mark.parametrize(
    ("kind", "accumulate"),
    [
        ("language", 3),
        pytest.param("classes", 1, marks=pytest.mark.nightly),
        pytest.param("smoothed", 1, marks=pytest.mark.nightly),
    ],
)
def test_equal_weights_reproduce_the_stock_trainer(tmp_path, kind, accumulate):
    """20 sequences in batches of 4: the window at the end of an epoch is a short one."""
    args = {"gradient_accumulation_steps": accumulate}
    args["label_smoothing_factor"] = 0.1 if kind == "smoothed" else 0.0
    runs = []
    for cls in (AttittudTrainer, summed(AttittudTrainer, Trainer)):
        model, data = (
            (classifier(), classes)
            if kind == "classes"
            else (llama(), lambda n, s: sequences(n, [1], s))
        )
        others = {"one": data(12, 2), "two": data(30, 3)}
        given = {"model": model, "train_dataset": data(20, 1), "auxiliary_datasets": others}
        trainer = guided(tmp_path, args, cls, **given)
        trainer.train()
        runs.append((curve(trainer), list(trainer.model.parameters())))
    (ours, found), (stock, expected) = runs
    assert len(ours) == 6 and stock[-1] < stock[0]
    assert ours == pytest.approx(stock, rel=2e-5)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, atol=2e-4)


def test_with_primary_only_a_run_has_the_losses_of_the_stock_trainer(tmp_path):
    """The other run uses nothing of ours: neither the data nor the step."""
    data = sequences(20, [1], 1)
    settings = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "weight_decay": 0.1}
    stock = Trainer(model=llama(), args=arguments(tmp_path, **settings), train_dataset=data)
    guide = preset("primary_only") | {"rank": 3}
    ours = guided(tmp_path, settings, train_dataset=data, guide=guide)
    stock.train()
    ours.train()
    assert curve(ours, "loss_primary") == pytest.approx(curve(stock), rel=2e-5)
    assert curve(ours, "grad_norm") == pytest.approx(curve(stock, "grad_norm"), rel=1e-3)


KILLED = """
import os, signal
import torch, transformers
from transformers_trainer import make_trainer
torch.set_num_threads(1)

class Kill(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 8:
            os.kill(os.getpid(), signal.SIGKILL)

make_trainer({folder!r}, callbacks=[Kill()], max_steps=12, disable_tqdm=True).train()
"""


@pytest.mark.nightly
def test_a_killed_run_resumes_to_the_same_losses(tmp_path):
    """Dropout is on, and the checkpoint is in the middle of an epoch, with a stale basis."""
    found = exit_code(KILLED.format(folder=str(tmp_path / "killed")))
    assert found == -signal.SIGKILL
    whole = make_trainer(str(tmp_path / "whole"), max_steps=12, disable_tqdm=True)
    whole.train()
    resumed = make_trainer(str(tmp_path / "killed"), max_steps=12, disable_tqdm=True)
    resumed.train(resume_from_checkpoint=True)
    assert resumed._initial_global_step == 5
    assert_same_run(resumed, whole)
    # The saved state made that possible: without it the curve is another one.
    shutil.rmtree(tmp_path / "whole" / "checkpoint-5" / FOLDER)
    forgetful = make_trainer(str(tmp_path / "whole"), max_steps=12, disable_tqdm=True)
    forgetful.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert curve(forgetful) != curve(whole)


def test_a_run_resumes_at_the_end_of_an_epoch_after_a_short_accumulation(tmp_path):
    settings = {"gradient_accumulation_steps": 3, "max_steps": 8, "disable_tqdm": True}
    whole = make_trainer(str(tmp_path), **settings)
    whole.train()
    resumed = make_trainer(str(tmp_path), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert_same_run(resumed, whole)


def test_damaged_files_are_refused_by_name(tmp_path):
    trainer = make_trainer(str(tmp_path), max_steps=2, save_steps=2, disable_tqdm=True)
    trainer.train()
    folder = tmp_path / "checkpoint-2"
    file = folder / FOLDER / "auxiliary.json"
    for content in ("", "[1]", file.read_text()[:9]):
        file.write_text(content)
        with pytest.raises(ValueError, match=f"^{file}: "):
            load_guide(trainer.guide, folder)


def assert_same_run(resumed: Trainer, whole: Trainer) -> None:
    for name in ("loss", "loss_updown", "grad_norm", "attittud/share_helpful"):
        assert curve(resumed, name) == curve(whole, name), name
    for mine, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_packed_primary_batch_is_refused(tmp_path):
    trainer = guided(tmp_path, data_collator=transformers.DataCollatorWithFlattening())
    with pytest.raises(ValueError, match="primary batch"):
        trainer.train()


def test_eta_auto_works_with_judges_and_resumes(tmp_path):
    """Counting down earns less than counting up, the primary task."""
    args = {"gradient_accumulation_steps": 2, "max_steps": 8}
    args |= {"save_strategy": "steps", "save_steps": 5}
    settings = {
        "auxiliary_datasets": {"up": sequences(12, [1], 2), "down": sequences(12, [-1], 3)},
        "judge_dataset": sequences(6, [1], 4),
        "guide": {"eta": "auto", "rank": 3, "refresh_every": 3, "judge_every": 2},
    }
    whole, resumed = (guided(tmp_path, args, **settings) for _ in range(2))
    whole.train()
    assert whole.auxiliary.drawn["judge_dataset"] == 4
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert curve(resumed) == curve(whole) and len(curve(whole)) == 8
    scores = whole.report.tasks
    assert float(scores["up"].earned.score.sum()) > float(scores["down"].earned.score.sum())
    assert (
        curve(whole, "attittud/up/weight_helpful")[-1]
        > curve(whole, "attittud/down/weight_helpful")[-1]
    )


@pytest.mark.parametrize(
    ("wrong", "culprit"),
    [
        ({"guide": {"eta": "auto"}}, "judge_dataset="),
        ({"guide": {"eta": Eta(1, 1, 0)}, "judge_dataset": [{}]}, "judge_dataset="),
        ({"auxiliary_collators": {"wbe": None}}, "wbe"),
        ({"auxiliary_losses": {"wbe": None}}, "wbe"),
        ({"guide": preset("flip") | {"rank": 0}}, "rank must be"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_are_refused_at_once(tmp_path, wrong, culprit):
    with pytest.raises(ValueError, match=culprit):
        guided(tmp_path, auxiliary_datasets={"web": []}, **wrong)


@pytest.mark.parametrize(
    ("name", "value", "culprit"),
    [
        ("packing", True, "packing=True"),
        ("padding_free", True, "padding_free=True"),
        ("_n_gpu", 2, "DataParallel"),
        ("activation_offloading", True, "activation_offloading"),
        ("optim", "lomo", "lomo"),
    ],
)
def test_refusals_name_the_culprit(tmp_path, name, value, culprit):
    trainer = make_trainer(str(tmp_path))
    check_trainer(trainer)
    assert trainer.args.n_gpu <= 1  # reads the setting that is overwritten next
    setattr(trainer.args, name, value)
    with pytest.raises(ValueError, match=culprit):
        check_trainer(trainer)


@pytest.mark.parametrize("where", ["web", "judge_dataset"])
def test_labels_without_an_output_of_the_model_are_named(tmp_path, where):
    def rows(*labels: int) -> list[dict[str, Any]]:
        return [{"input_ids": [2, 3], "labels": label} for label in labels]

    data = {"web": rows(0, 1, 2), "judge_dataset": rows(0, 1)}
    data[where] = rows(1, 5)
    trainer = guided(
        tmp_path,
        {"max_steps": 1},
        model=classifier(),
        train_dataset=rows(0, 1, 2, 1),
        auxiliary_datasets={"web": data["web"]},
        judge_dataset=data["judge_dataset"],
        guide={"eta": "auto", "rank": 2},
    )
    with pytest.raises(ValueError, match=where):
        trainer.train()
