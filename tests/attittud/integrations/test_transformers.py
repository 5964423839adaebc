"""Hugging Face's Trainer: the same losses as the stock one, the same run after a kill, and clear
refusals.
"""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


import transformers
from transformers import Trainer

from attittud import Eta, preset
from attittud.integrations.transformers import FOLDER, AttittudTrainer, load_guide
from tests.helpers.processes import exit_code
from tests.helpers.trainers import (
    EXAMPLES,
    NUMBERS,
    SUM,
    WARNINGS,
    arguments,
    curve,
    llama,
    make_trainer,
    sequences,
    summed,
)

pytestmark = WARNINGS


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


def classifier() -> transformers.PreTrainedModel:
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=NUMBERS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config)


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
def test_equal_weights_reproduce_the_stock_trainer(
    tmp_path: Path, kind: str, accumulate: int
) -> None:
    """20 sequences of different lengths in batches of 4: the window at the end of an epoch is a
    short one.
    """
    smoothing = 0.1 if kind == "smoothed" else 0.0
    runs = []
    for cls in (AttittudTrainer, summed(AttittudTrainer, Trainer)):
        model, data = (
            (classifier(), classes)
            if kind == "classes"
            else (llama(), lambda n, s: sequences(n, [1], s))
        )
        trainer = cls(
            model=model,
            args=arguments(
                tmp_path, gradient_accumulation_steps=accumulate, label_smoothing_factor=smoothing
            ),
            train_dataset=data(20, 1),
            auxiliary_datasets={"one": data(12, 2), "two": data(30, 3)},
            guide=SUM,
        )
        trainer.train()
        runs.append((curve(trainer), list(trainer.model.parameters())))
    (guided, found), (stock, expected) = runs
    assert len(guided) == 6 and stock[-1] < stock[0]
    assert guided == pytest.approx(stock, rel=2e-5)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, atol=2e-4)


def test_with_primary_only_a_run_has_the_losses_of_the_stock_trainer(tmp_path: Path) -> None:
    """The other run uses nothing of ours: neither the data nor the step."""
    data, settings = (
        sequences(20, [1], 1),
        {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "weight_decay": 0.1},
    )
    stock = Trainer(model=llama(), args=arguments(tmp_path, **settings), train_dataset=data)
    guided = AttittudTrainer(
        model=llama(),
        args=arguments(tmp_path, **settings),
        train_dataset=data,
        auxiliary_datasets=sequences(8, [1], 2),
        guide=preset("primary_only") | {"rank": 3},
    )
    stock.train()
    guided.train()
    assert curve(guided, "loss_primary") == pytest.approx(curve(stock), rel=2e-5)
    assert curve(guided, "grad_norm") == pytest.approx(curve(stock, "grad_norm"), rel=1e-3)


KILLED = """
import os, signal, sys, warnings
sys.path.insert(0, {examples!r})
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
def test_a_killed_run_resumes_to_the_same_losses(tmp_path: Path) -> None:
    """Dropout is on, the basis is stale at the checkpoint (step 5, refresh every 3), which is in
    the middle of an epoch.
    """
    assert (
        exit_code(KILLED.format(examples=str(EXAMPLES), folder=str(tmp_path / "killed")))
        == -signal.SIGKILL
    )
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


def test_a_run_resumes_at_the_end_of_an_epoch_after_a_short_accumulation(tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 3, "max_steps": 8, "disable_tqdm": True}
    whole = make_trainer(str(tmp_path), **settings)
    whole.train()
    resumed = make_trainer(str(tmp_path), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert_same_run(resumed, whole)


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
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


def test_a_packed_primary_batch_is_refused(tmp_path: Path) -> None:
    trainer = AttittudTrainer(
        model=llama(),
        args=arguments(tmp_path),
        train_dataset=sequences(16, [1], 1),
        data_collator=transformers.DataCollatorWithFlattening(),
        auxiliary_datasets=sequences(16, [1], 2),
        guide=SUM,
    )
    with pytest.raises(ValueError, match="primary batch"):
        trainer.train()


def test_eta_auto_works_with_judges_and_resumes(tmp_path: Path) -> None:
    """Judges are asked every second step, and the run is resumed. Counting down earns less than
    counting up, the primary task.
    """

    def auto() -> AttittudTrainer:
        return AttittudTrainer(
            model=llama(),
            args=arguments(
                tmp_path,
                gradient_accumulation_steps=2,
                save_strategy="steps",
                save_steps=5,
                max_steps=8,
            ),
            train_dataset=sequences(20, [1], 1),
            auxiliary_datasets={"up": sequences(12, [1], 2), "down": sequences(12, [-1], 3)},
            judge_dataset=sequences(6, [1], 4),
            guide={"eta": "auto", "rank": 3, "refresh_every": 3, "judge_every": 2},
        )

    whole, resumed = auto(), auto()
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


def test_judges_and_eta_auto_belong_together(tmp_path: Path) -> None:
    def trainer(eta: Any, judges: Any) -> AttittudTrainer:
        return AttittudTrainer(
            model=llama(),
            args=arguments(tmp_path),
            auxiliary_datasets={"web": []},
            guide={"eta": eta},
            judge_dataset=judges,
        )

    with pytest.raises(ValueError, match="judge_dataset="):
        trainer("auto", None)
    with pytest.raises(ValueError, match="judge_dataset="):
        trainer(Eta(1, 1, 0), sequences(4, [1], 1))


def test_unknown_dataset_names_are_refused_at_once(tmp_path: Path) -> None:
    for wrong in ({"auxiliary_collators": {"wbe": None}}, {"auxiliary_losses": {"wbe": None}}):
        with pytest.raises(ValueError, match="wbe"):
            AttittudTrainer(
                model=llama(),
                args=arguments(tmp_path),
                auxiliary_datasets={"web": []},
                guide=preset("flip"),
                **wrong,
            )
    with pytest.raises(ValueError, match="rank must be"):
        AttittudTrainer(
            model=llama(),
            args=arguments(tmp_path),
            auxiliary_datasets={"web": []},
            guide=preset("flip") | {"rank": 0},
        )
