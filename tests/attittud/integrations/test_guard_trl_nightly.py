"""Guards on TRL's trainers: packing, preference pairs, figures of TRL, and the example."""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("trl")

from guard_trainer import Guarded, main
from transformers import DataCollatorForLanguageModeling
from trl import DPOConfig, DPOTrainer, SFTConfig
from trl_trainers import make_model, make_tokenizer, pairs, text

from attittud.integrations.guard import GuardMixin
from tests.helpers.trainers import WARNINGS, arguments, curve

pytestmark = [*WARNINGS, pytest.mark.usefixtures("offline"), pytest.mark.nightly]

SFT = {"max_length": 16, "max_steps": 2, "optim": "sgd"}


class GuardedDPO(GuardMixin, DPOTrainer):
    pass


def test_packing_accumulation_and_checkpointing(tmp_path):
    args = {
        "packing": True,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
        "max_steps": 4,
    }
    args |= {
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    run = Guarded(
        make_model(),
        arguments(tmp_path, SFTConfig, **SFT | args),
        train_dataset=text(40, [-1], 1),
        eval_dataset=text(8, [-1], 7),
        processing_class=make_tokenizer(),
        protect_dataset=text(8, [1], 2),
        protect_eval_dataset=text(8, [1], 3),
    )
    run.train()
    assert len(curve(run, "eval_forgetting")) == 2 and len(curve(run, "loss_protected")) == 4
    assert curve(run, "loss_new") == pytest.approx(curve(run), rel=1e-3)


def test_dpo_works_with_protected_text(tmp_path):
    """New data are pairs; what is protected is plain text, with a collator of its own."""
    tokenizer = make_tokenizer()
    tokens = text(8, [1], seed=2).map(lambda row: tokenizer(row["text"]), remove_columns="text")
    run = GuardedDPO(
        model=make_model(),
        ref_model=make_model(),
        args=arguments(
            tmp_path, DPOConfig, max_length=24, max_steps=3, optim="sgd", learning_rate=0.5
        ),
        train_dataset=pairs(16, 1),
        processing_class=tokenizer,
        protect_dataset=tokens,
        protect_eval_dataset=tokens,
        protect_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    run.train()
    assert len(curve(run, "loss_protected")) == 3 and run.forgetting() != 0


def test_the_example_learns_and_the_guard_keeps_more(tmp_path, capsys):
    runs = {guard: main([str(tmp_path / guard), "--guard", guard]) for guard in ("none", "kl")}
    assert all(curve(run, "eval_loss")[-1] < 1.5 for run in runs.values())
    assert runs["kl"].forgetting() < runs["none"].forgetting()
    assert "share of the trained weights" in capsys.readouterr().out
