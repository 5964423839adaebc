"""Guards on TRL's trainers: packing, preference pairs, figures of TRL, and the example."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


pytest.importorskip("trl", reason="needs trl")


pytest.importorskip("tests.helpers.trainers", reason="puts the examples on the path")


from guard_trainer import Guarded, main
from transformers import DataCollatorForLanguageModeling
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from trl_trainers import make_model, make_tokenizer, pairs, text

from attittud.integrations.guard import GuardMixin
from tests.helpers.trainers import WARNINGS, arguments, curve

pytestmark = [*WARNINGS, pytest.mark.usefixtures("offline"), pytest.mark.slow]

SFT = {"max_length": 16, "max_steps": 2, "optim": "sgd"}


class GuardedDPO(GuardMixin, DPOTrainer):
    pass


@pytest.mark.parametrize("guard", ["kl", "a_gem"])
def test_packing_accumulation_and_checkpointing(tmp_path: Path, guard: str) -> None:
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
        guard=guard,
        protect_dataset=text(8, [1], 2),
        protect_eval_dataset=text(8, [1], 3),
    )
    run.train()
    assert len(curve(run, "eval_forgetting")) == 2 and len(curve(run, "loss_protected")) == 4
    assert curve(run, "loss_new") == pytest.approx(curve(run), rel=1e-3)


@pytest.mark.parametrize("guard", ["kl", "a_gem"])
def test_dpo_works_with_protected_text(tmp_path: Path, guard: str) -> None:
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
        guard=guard,
    )
    run.train()
    assert len(curve(run, "loss_protected")) == 3 and run.forgetting() != 0


def test_the_figures_of_trl_are_about_the_new_data_alone(tmp_path: Path) -> None:
    args = arguments(
        tmp_path, SFTConfig, **SFT | {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    )
    data: dict[str, Any] = {"train_dataset": text(40, [-1], 1), "eval_dataset": text(8, [-1], 7)}
    more = {
        "protect_dataset": text(8, [1], 2),
        "protect_eval_dataset": text(8, [1], 3),
        "guard": "a_gem",
    }
    guarded = Guarded(make_model(), args, processing_class=make_tokenizer(), **data, **more)
    stock = SFTTrainer(make_model(), args, processing_class=make_tokenizer(), **data)
    guarded.train()
    stock.train()
    first = stock.state.log_history[0]
    own = [name for name in first if name not in ("grad_norm", "epoch", "step", "loss")]
    assert "num_tokens" in own and "mean_token_accuracy" in own
    logged = guarded.state.log_history[0]
    assert {name: logged[name] for name in own} == pytest.approx(
        {name: first[name] for name in own}, rel=1e-4
    )


def test_the_example_learns_and_the_guard_keeps_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {guard: main([str(tmp_path / guard), "--guard", guard]) for guard in ("none", "kl")}
    assert all(curve(run, "eval_loss")[-1] < 1.5 for run in runs.values())
    assert runs["kl"].forgetting() < runs["none"].forgetting()
    assert "share of the trained weights" in capsys.readouterr().out
