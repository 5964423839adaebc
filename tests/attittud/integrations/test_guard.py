"""Trainers that learn new data and protect old abilities: their steps are the published updates on the Trainer's own losses."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


pytest.importorskip("trl", reason="needs trl")


pytest.importorskip("peft", reason="needs peft")


pytest.importorskip("tests.helpers.trainers", reason="puts the examples on the path")


from datasets import Dataset
from guard_trainer import make_start, make_trainer
from peft import LoraConfig, PromptTuningConfig
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from trl_trainers import make_model, make_tokenizer, pairs, text

from attittud import guards
from attittud.integrations.guard import PLAIN, GuardMixin
from tests.helpers.trainers import WARNINGS, arguments, curve

pytestmark = [*WARNINGS, pytest.mark.usefixtures("offline")]


class Guarded(GuardMixin, SFTTrainer):
    pass


class GuardedDPO(GuardMixin, DPOTrainer):
    pass


class Stock(GuardMixin, Trainer):
    pass


def sft(folder: Path, cls: type = Guarded, *, args: Any = None, **settings: Any) -> Any:
    """Learn to count downwards, protect counting upwards."""
    own = {"guard": "a_gem", "protect_dataset": text(8, [1], 2), "protect_eval_dataset": text(8, [1], 3), "shares": ()}
    return cls(
        model=make_model(),
        args=arguments(folder, SFTConfig, **{"max_length": 16, "max_steps": 4, "optim": "sgd"} | (args or {})),
        train_dataset=text(40, [-1], 1),
        processing_class=make_tokenizer(),
        **own | settings,
    )


def weights(trainer: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


class ByHand(Guarded):
    """A-GEM (facebookresearch/agem, model/model.py) written with torch.autograd.grad; only the data come from the mixin."""

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        parameters = list(model.parameters())

        def gradient(loss: Tensor) -> Tensor:
            return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

        model.train()
        if self._opened:
            (((batch,), items),) = self._window.values()
            self.r, self.g, self._opened = gradient(self.compute_loss(model, batch, num_items_in_batch=items)), 0, False
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.g = self.g + gradient(loss)  # TRL's loss is divided by the tokens of all micro-batches already
        if self.accelerator.sync_gradients:
            inner = self.g @ self.r
            found = self.g - inner / (self.r @ self.r) * self.r if inner < 0 else self.g
            self.conflicts = getattr(self, "conflicts", 0) + int(inner < 0)
            for p, part in zip(parameters, found.split([p.numel() for p in parameters]), strict=True):
                p.grad = part.view_as(p).clone()
        return loss.detach()


@pytest.mark.slow
@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_run_follows_the_formula_of_a_gem_on_the_trainers_own_losses(tmp_path: Path, accumulated: int) -> None:
    settings = {"gradient_accumulation_steps": accumulated, "max_grad_norm": 0.0, "learning_rate": 0.5, "max_steps": 8}
    found, want = (sft(tmp_path, cls, args=settings) for cls in (Guarded, ByHand))
    for trainer in (found, want):
        trainer.train()
    assert 0 < want.conflicts < 8
    assert curve(found) == pytest.approx(curve(want), rel=1e-5)
    assert torch.allclose(weights(found), weights(want), atol=1e-6)


@pytest.mark.slow
def test_without_a_guard_a_run_equals_the_stock_trainers_bit_for_bit(tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 2}
    found = sft(tmp_path, guard="none", protect_dataset=None, args=settings)
    stock = SFTTrainer(
        make_model(),
        arguments(tmp_path, SFTConfig, max_length=16, max_steps=4, optim="sgd", **settings),
        train_dataset=text(40, [-1], 1),
        processing_class=make_tokenizer(),
    )
    for trainer in (found, stock):
        trainer.train()
    assert curve(found) == curve(stock) and torch.equal(weights(found), weights(stock))


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["replay", "kl"])
def test_an_added_loss_counts_once_per_step_whatever_the_accumulation(tmp_path: Path, guard: str) -> None:
    """Whatever the accumulation: compared with a guide that adds the same gradients."""
    settings = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.0, "learning_rate": 0.3}
    loss = "kl" if guard == "kl" else "nll"
    sum_ = {"eta": (1, 1, 1), "refresh_every": 1}
    found = sft(tmp_path, guard=guard, protect_weight=0.7, args=settings)
    want = sft(tmp_path, guard="a_gem", protect_loss=loss, protect_weight=0.7, guide=sum_, args=settings)
    for trainer in (found, want):
        trainer.train()
    assert torch.allclose(weights(found), weights(want), atol=1e-6)
    start = torch.cat([p.detach().flatten() for p in make_model().parameters()])
    assert (weights(found) - start).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guard", "loss"),
    [("none", "nll"), ("kl", "kl"), *((name, loss) for name in ("replay", *guards()) for loss in ("nll", "kl"))],
)
def test_every_method_runs_with_packing_accumulation_and_checkpointing(tmp_path: Path, guard: str, loss: str) -> None:
    args = {"packing": guard != "orthograd", "gradient_accumulation_steps": 2, "gradient_checkpointing": True}
    args |= {"optim": "adamw_torch", "eval_strategy": "steps", "eval_steps": 2}
    more = {"protect_dataset": {"up": text(8, [1], 2), "twos": text(8, [2], 4)}} if guard == "ogpsa" else {}
    checkpointing = {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
    more |= {"protect_loss": loss} if guard not in ("none", "kl") else {}
    trainer = sft(tmp_path, guard=guard, eval_dataset=text(8, [-1], 7), args=args | checkpointing, **more)
    trainer.train()
    assert len(curve(trainer, "eval_forgetting")) == 2 and len(curve(trainer)) == 4
    assert curve(trainer, "loss_new") == pytest.approx(curve(trainer), rel=1e-3)
    assert len(curve(trainer, "loss_protected")) == {"none": 0, "ogpsa": 1 + (loss == "kl")}.get(guard, 4)
    if guard not in PLAIN:
        assert int(trainer.report.effective_rank) > (21 if guard == "ogpsa" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["a_gem"])
def test_the_divergence_has_no_gradient_at_the_start_and_the_next_step_refreshes_again(
    tmp_path: Path, guard: str
) -> None:
    """Its gradient is zero there: a basis made of it would be noise, and stay for 30 steps."""
    ranks = {}
    for steps in (1, 2):
        trainer = sft(tmp_path, guard=guard, protect_loss="kl", args={"max_steps": steps, "learning_rate": 0.3})
        trainer.train()
        ranks[steps] = int(trainer.report.effective_rank)
        if steps == 1:
            plain = sft(tmp_path, guard="none", args={"max_steps": 1, "learning_rate": 0.3})
            plain.train()
            assert torch.allclose(weights(trainer), weights(plain), atol=1e-7)
    assert ranks[1] == 0 and ranks[2] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("guard", "loss"), [("a_gem", "kl"), ("replay", "nll")])
def test_a_resumed_run_is_the_same_run(tmp_path: Path, guard: str, loss: str) -> None:
    args = {"max_steps": 5, "save_strategy": "steps", "save_steps": 3, "optim": "adamw_torch"}
    whole, resumed = (sft(tmp_path, guard=guard, protect_loss=loss, args=args) for _ in range(2))
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert curve(resumed) == curve(whole) and torch.equal(weights(resumed), weights(whole))


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["none", "a_gem"])
def test_a_run_resumed_after_its_last_step_does_as_many_steps_as_with_the_stock_trainer(
    tmp_path: Path, guard: str
) -> None:
    """Transformers 5.22 does one step too many here. This is its own behaviour, which the mixin does not change."""
    steps = {}
    for name in ("guarded", "stock"):
        settings = {"max_length": 16, "max_steps": 2, "optim": "sgd", "save_strategy": "steps", "save_steps": 2}
        for checkpoint in (None, str(tmp_path / name / "checkpoint-2")):
            if name == "guarded":
                trainer = sft(tmp_path / name, guard=guard, protect_eval_dataset=None, args=settings)
            else:
                trainer = SFTTrainer(
                    make_model(),
                    arguments(tmp_path / name, SFTConfig, **settings),
                    train_dataset=text(40, [-1], 1),
                    processing_class=make_tokenizer(),
                )
            trainer.train(resume_from_checkpoint=checkpoint)
        steps[name] = trainer.state.global_step
    assert steps["guarded"] == steps["stock"]


@pytest.mark.slow
def test_the_log_has_forgetting_of_the_model_and_of_the_weight_averages(tmp_path: Path) -> None:
    args = {"eval_strategy": "steps", "eval_steps": 4, "learning_rate": 0.5, "max_steps": 8}
    trainer = sft(tmp_path, guard="none", eval_dataset=text(8, [-1], 7), args=args, shares=(0, 0.25, 0.5, 0.75, 1))
    trainer.train()
    lost = curve(trainer, "eval_forgetting")
    assert len(lost) == 2
    assert [curve(trainer, f"average_{share}_forgetting") for share in (0, 1)] == [[0.0], [lost[-1]]]
    assert list(trainer.averages) == [0, 0.25, 0.5, 0.75, 1]
    losses = [found["eval_loss"] for found in trainer.averages.values()]
    assert losses[-1] < losses[0] and losses[-1] == pytest.approx(curve(trainer, "eval_loss")[-1], rel=1e-3)
    seen = sft(tmp_path, guard="replay", protect_eval_dataset=None, eval_dataset=text(8, [-1], 7), args=args)
    seen.train()
    assert len(curve(seen, "eval_forgetting_protected")) == 2 and not curve(seen, "eval_forgetting")


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["kl", "a_gem"])
def test_lora_needs_no_copy_of_the_start_model(tmp_path: Path, guard: str) -> None:
    args = {"learning_rate": 0.5, "eval_strategy": "steps", "eval_steps": 4}
    peft = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    more = {"eval_dataset": text(8, [-1], 7), "shares": (0, 0.5, 1), "peft_config": peft}
    trainer = sft(tmp_path, guard=guard, protect_loss="kl", args=args, **more)
    trainer.train()
    assert trainer.protected_loss.adapters and not trainer.protected_loss._start
    assert trainer.averages[0]["forgetting"] == pytest.approx(0, abs=1e-6)
    assert trainer.averages[1]["forgetting"] == pytest.approx(curve(trainer, "eval_forgetting")[-1], abs=1e-6)
    assert trainer.averages[1]["eval_loss"] != trainer.averages[0]["eval_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["nll", "kl"])
def test_dpo_works_with_protected_text(tmp_path: Path, loss: str) -> None:
    """New data are pairs; what is protected is plain text, with a collator of its own."""
    tokenizer = make_tokenizer()
    tokens = text(8, [1], seed=2).map(lambda row: tokenizer(row["text"]), remove_columns="text")
    trainer = GuardedDPO(
        model=make_model(),
        ref_model=make_model(),
        args=arguments(tmp_path, DPOConfig, max_length=24, max_steps=3, optim="sgd", learning_rate=0.5),
        train_dataset=pairs(16, 1),
        processing_class=tokenizer,
        protect_dataset=tokens,
        protect_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        protect_loss=loss,
        guard="a_gem",
    )
    trainer.train()
    assert int(trainer.report.effective_rank) == 1 and len(trainer.averages) == 5


def dpo(folder: Path, cls: type = GuardedDPO, *, args: Any = None, **settings: Any) -> Any:
    more = {"eval_strategy": "steps", "eval_steps": 2, "max_length": 24, "max_steps": 2, "optim": "sgd"} | (args or {})
    return cls(
        model=make_model(),
        ref_model=make_model(),
        args=arguments(folder, DPOConfig, learning_rate=0.5, **more),
        train_dataset=pairs(16, 1),
        eval_dataset=pairs(8, 5),
        processing_class=make_tokenizer(),
        **settings,
    )


@pytest.mark.slow
@pytest.mark.parametrize("make", [sft, dpo])
def test_the_figures_of_trl_are_about_the_new_data_alone(tmp_path: Path, make: Any) -> None:
    data = (text(8, [1], 2), text(8, [1], 3)) if make is sft else (pairs(8, 2), pairs(6, 3))
    more = {"protect_dataset": data[0], "protect_eval_dataset": data[1], "guard": "a_gem"}
    args = {"max_steps": 1, "eval_steps": 1, "eval_strategy": "steps"}
    found = make(tmp_path, args=args, **more, **({"eval_dataset": text(8, [-1], 7)} if make is sft else {}))
    stock: Any = (
        SFTTrainer(
            make_model(),
            arguments(tmp_path, SFTConfig, max_length=16, optim="sgd", **args),
            train_dataset=text(40, [-1], 1),
            eval_dataset=text(8, [-1], 7),
            processing_class=make_tokenizer(),
        )
        if make is sft
        else dpo(tmp_path, DPOTrainer, args=args)
    )
    # Only the first step: from then on the weights differ, and so do figures of an evaluation.
    logs = []
    for trainer in (found, stock):
        trainer.train()
        logs.append(trainer.state.log_history[0])
    own = [name for name in logs[1] if name not in ("grad_norm", "epoch", "step", "loss")]
    assert "num_tokens" in own and "mean_token_accuracy" in own
    assert {name: logs[0][name] for name in own} == pytest.approx({name: logs[1][name] for name in own}, rel=1e-4)
    plain = make(
        tmp_path, args=args, **more | {"guard": "none"}, **({"eval_dataset": text(8, [-1], 7)} if make is sft else {})
    )
    plain.train()
    measured = {
        name: x
        for name, x in stock.state.log_history[1].items()
        if name.startswith("eval_") and "per_second" not in name
    }
    measured.pop("eval_runtime")
    assert len(measured) > 3 and {name: plain.state.log_history[1][name] for name in measured} == pytest.approx(
        measured
    )


def test_dpo_refuses_references_that_are_not_computed_for_protected_pairs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="precompute_ref_log_probs"):
        dpo(tmp_path, args={"precompute_ref_log_probs": True}, protect_dataset=pairs(8, 2), guard="a_gem")


@pytest.mark.parametrize("settings", [{}, {"guard": "a_gem", "protect_loss": "kl"}])
def test_dpo_refuses_to_compare_pairs_with_the_start_model(tmp_path: Path, settings: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"which DPO's pairs do not have\. Protect texts with a protect_collator="):
        dpo(tmp_path, protect_dataset=pairs(8, 2), **settings)


def test_a_copy_of_a_model_that_trl_trained_is_refused(tmp_path: Path) -> None:
    """Its forward pass without labels is that of the first model, so the guard would measure a model that nobody trains."""
    own = {"train_dataset": text(8, [-1], 1), "processing_class": make_tokenizer()}
    args = arguments(tmp_path, SFTConfig, max_length=16, max_steps=1, bf16=True)
    first = SFTTrainer(make_model(), args, **own)
    first.train()
    with pytest.raises(ValueError, match="still runs the forward pass of the original"):
        Guarded(copy.deepcopy(first.model), args, protect_dataset=text(8, [1], 2), **own)
    Guarded(first.model, args, protect_dataset=text(8, [1], 2), **own)
    lora = LoraConfig(r=2, target_modules=["q_proj"])
    Guarded(first.model, args, protect_dataset=text(8, [1], 2), peft_config=lora, **own)


@pytest.mark.parametrize("guard", ["kl", "a_gem", "replay"])
def test_a_loss_that_comes_without_logits_is_enough(tmp_path: Path, guard: str) -> None:
    """As with Liger's fused loss: a forward pass with labels gives no logits."""

    def trained(*, fused: bool) -> Tensor:
        model, tokenizer = make_model(), make_tokenizer()
        usual = model.forward

        @functools.wraps(usual)
        def without_logits(*args: Any, labels: Any = None, **more: Any) -> Any:
            found = usual(*args, labels=labels, **more)
            if labels is not None:
                found.logits = None
            return found

        if fused:
            model.forward = without_logits
        new, old = (text(16, [step], 1).map(lambda row: tokenizer(row["text"])) for step in (-1, 1))
        own = {"guard": guard, "protect_dataset": old, "shares": ()}
        args = arguments(tmp_path, max_steps=3)
        collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
        trainer = Stock(model=model, args=args, train_dataset=new, data_collator=collator, **own)
        trainer.train()
        return weights(trainer)

    assert torch.equal(trained(fused=True), trained(fused=False))


def test_data_that_trl_does_not_prepare_are_not_prepared_when_they_are_protected(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()

    def collate(rows: list[dict[str, str]]) -> dict[str, Tensor]:
        found = tokenizer([row["words"] for row in rows], return_tensors="pt", padding=True)
        ids, mask = found["input_ids"], found["attention_mask"]
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    args = {"dataset_kwargs": {"skip_prepare_dataset": True}, "remove_unused_columns": False, "max_steps": 1}
    data = {seed: text(8, [1], seed).rename_column("text", "words") for seed in (1, 2)}
    trainer = Guarded(
        make_model(),
        arguments(tmp_path, SFTConfig, max_length=16, **args),
        train_dataset=data[1],
        data_collator=collate,
        processing_class=tokenizer,
        protect_dataset=data[2],
    )
    trainer.train()
    assert trainer.auxiliary.datasets["protected"].column_names == ["words"] and curve(trainer, "loss_protected") == [0]


class Seen(TrainerCallback):
    def __init__(self) -> None:
        self.names: list[set[str]] = []

    def on_evaluate(self, *_: Any, metrics: dict[str, float], **__: Any) -> None:
        self.names.append(set(metrics))


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_callbacks_see_what_was_forgotten(tmp_path: Path, several: bool) -> None:
    """With several evaluation sets, each has a log of its own, and forgetting comes after them."""
    seen, data = Seen(), text(8, [-1], 7)
    args = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 1}
    trainer = sft(tmp_path, eval_dataset={"a": data, "b": data} if several else data, callbacks=[seen], args=args)
    trainer.train()
    assert len(curve(trainer, "eval_forgetting")) == 1 and len(seen.names) == 1 + several
    assert ("eval_forgetting" in seen.names[-1]) == (not several)


def test_kl_is_the_default(tmp_path: Path) -> None:
    own = arguments(tmp_path, SFTConfig, max_length=16)
    data = {"train_dataset": text(8, [-1], 1), "protect_dataset": text(8, [1], 2), "processing_class": make_tokenizer()}
    assert Guarded(make_model(), own, **data).protected_loss.kind == "kl"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"bf16": True}, {"padding_free": True, "max_length": None}])
def test_the_start_model_replies_to_prompts(tmp_path: Path, settings: Any) -> None:
    trainer = sft(
        tmp_path,
        protect_dataset=None,
        protect_prompts=["1 2 3", "5 6"],
        reply_tokens=4,
        protect_loss="kl",
        args=settings,
    )
    trainer.train()
    assert len(trainer.auxiliary.datasets["protected"]) == 2 and int(trainer.report.effective_rank) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"guard": "agem"}, "Did you mean 'a_gem'"),
        ({"protect_loss": "l2"}, "'nll' or 'kl'"),
        ({"protect_dataset": None}, "protect_dataset=, or protect_prompts="),
        ({"protect_prompts": ["1"]}, "pass one of them"),
        ({"guard": "kl", "guide": {"refresh_every": 5}}, "has no effect with guard='kl'"),
        ({"guard": "none", "protect_loss": "kl"}, "protect_loss='kl' has no effect with guard='none'"),
        ({"protect_weight": -1}, "protect_weight must not be negative"),
        ({"args": {"metric_for_best_model": "eval_forgetting"}}, "needs greater_is_better=False"),
        ({"protect_batch_size": 0}, "protect_batch_size"),
        ({"protect_dataset": [{"text": "1 2"}]}, r"protect_dataset= .* datasets\.Dataset\.from_list"),
        ({"protect_dataset": Dataset.from_dict({"txt": ["1"]})}, "protect_dataset= .* it has 'txt'"),
        ({"protect_eval_dataset": Dataset.from_dict({"text": []})}, "protect_eval_dataset= is empty"),
        (
            {"protect_dataset": None, "protect_prompts": [[{"role": "user", "content": "1"}]]},
            "protect_prompts=: .* a tokenizer with a chat template",
        ),
        ({"peft_config": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)}, "LoraConfig"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        sft(tmp_path, **settings)


@pytest.mark.slow
def test_the_example_learns_and_logs_forgetting(tmp_path: Path) -> None:
    quiet = {"disable_tqdm": True, "logging_steps": 30}
    trainer = make_trainer(str(tmp_path), make_start(str(tmp_path), **quiet), **quiet)
    trainer.train()
    assert trainer.averages[1.0]["eval_loss"] < 0.7 * trainer.averages[0.0]["eval_loss"]
    assert curve(trainer, "eval_forgetting")[-1] == pytest.approx(trainer.averages[1.0]["forgetting"])
