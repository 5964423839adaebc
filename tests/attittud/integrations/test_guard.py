"""Trainers that learn new data and keep old abilities follow the formulas written here."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from attittud import averages, weights_of
from attittud.integrations.guard import GuardMixin
from tests.helpers.trainers import WARNINGS, arguments, curve, llama

pytestmark = [*WARNINGS, pytest.mark.usefixtures("offline")]

STEPS, RATE, WEIGHT = 12, 0.1, 0.7


class Guarded(GuardMixin, Trainer):
    pass


class Recording(Guarded):
    """Keeps the batches of every step."""

    def get_batch_samples(self, *args: Any) -> Any:
        batches, items = super().get_batch_samples(*args)
        if batches:
            protected = [drawn[0] for drawn, _ in self._window.values()]
            self.batches.append(copy.deepcopy((batches, protected)))
        return batches, items


class Seen(TrainerCallback):
    """Keeps the weights after every step, and the names of the metrics of every evaluation."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []
        self.metrics: list[set[str]] = []

    def on_step_end(self, *_: Any, model: nn.Module, **__: Any) -> None:
        self.weights.append(flat(model))

    def on_evaluate(self, *_: Any, metrics: dict[str, float], **__: Any) -> None:
        self.metrics.append(set(metrics))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def rows(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Sequences of three lengths, in which the first tokens do not count."""
    numbers = torch.randint(
        2, 20, (count, 8), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return [
        {"input_ids": x[: 8 - i % 3], "labels": [-100, -100, *x[2 : 8 - i % 3]]}
        for i, x in enumerate(numbers)
    ]


def opposed(count: int, seed: int) -> list[dict[str, list[int]]]:
    """The same inputs with other labels, so that gradients often conflict."""
    found = rows(count, seed)
    return [row | {"labels": [y if y == -100 else 21 - y for y in row["labels"]]} for row in found]


def pad(batch: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    longest = max(len(row["labels"]) for row in batch)

    def padded(name: str, value: int) -> Tensor:
        return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in batch])

    ids = padded("input_ids", 0)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": padded("labels", -100)}


def trainer(folder: Path, cls: type = Guarded, *, args: Any = None, **settings: Any) -> Any:
    usual = {
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "optim": "sgd",
        "learning_rate": RATE,
    }
    own = {
        "protect_dataset": rows(10, 2),
        "data_collator": pad,
        "train_dataset": rows(40, 1),
    } | settings
    model = own.pop("model", None) or llama()
    return cls(model, arguments(folder, **usual | (args or {})), **own)


def log_probabilities(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return F.log_softmax(logits[:, :-1].double(), -1)


def token_losses(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss of each token, 0 where it does not count, and which tokens count."""
    labels = batch["labels"][:, 1:]
    found = log_probabilities(model, batch).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return -found * (labels != -100), labels != -100


class Reference:
    """The two updates, on gradients that torch.autograd.grad computes."""

    def __init__(self, guard: str, start: nn.Module) -> None:
        self.guard, self.start, self.model = guard, start, copy.deepcopy(start)
        self.parameters = list(self.model.parameters())
        self.conflicts = 0

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.parameters)])

    def protected(self, batch: dict[str, Tensor]) -> Tensor:
        """The mean over sequences of each sequence's mean loss or divergence."""
        if self.guard == "a_gem":
            losses, counted = token_losses(self.model, batch)
            return (losses.sum(1) / counted.sum(1)).mean()
        with torch.no_grad():
            before = log_probabilities(self.start, batch)
        each = (before.exp() * (before - log_probabilities(self.model, batch))).sum(-1)
        counted = batch["labels"][:, 1:] != -100
        return ((each * counted).sum(1) / counted.sum(1)).mean()

    def train(self, new: list[dict[str, Tensor]], protected: list[dict[str, Tensor]]) -> Tensor:
        parts = [token_losses(self.model, batch) for batch in new]
        count = sum(int(counted.sum()) for _, counted in parts)
        update = self.gradient(sum(losses.sum() for losses, _ in parts) / count)
        r = self.gradient(self.protected(protected[0]))
        if self.guard == "kl":
            update = update + WEIGHT * r
        elif update @ r < 0:
            update = update - (update @ r) / (r @ r) * r
            self.conflicts += 1
        with torch.no_grad():
            for p, part in zip(
                self.parameters, update.split([p.numel() for p in self.parameters]), strict=True
            ):
                p.sub_(RATE * part.view_as(p))
        return flat(self.model)


@pytest.mark.parametrize(("guard", "accumulated"), [("a_gem", 1), ("kl", 3)])
def test_a_run_follows_the_formula(tmp_path, guard, accumulated):
    start = llama().double()
    seen = Seen()
    run = trainer(
        tmp_path,
        Recording,
        model=copy.deepcopy(start),
        guard=guard,
        protect_dataset=opposed(40, 1),
        protect_batch_size=4,
        protect_weight=WEIGHT,
        callbacks=[seen],
        args={"max_steps": STEPS, "gradient_accumulation_steps": accumulated, "max_grad_norm": 0.0},
    )
    run.batches = []
    run.train()
    reference = Reference(guard, start)
    expected = [reference.train(*batches) for batches in run.batches]
    assert len(expected) == len(seen.weights) == STEPS
    assert (expected[-1] - flat(start)).abs().max() > 0.02
    found = max(float((x - y).abs().max()) for x, y in zip(seen.weights, expected, strict=True))
    assert found < 1e-6
    assert (guard != "a_gem") or 0 < reference.conflicts < STEPS
    assert len(curve(run, "loss_protected")) == STEPS
    assert curve(run, "loss_new") == pytest.approx(curve(run), rel=1e-3)


def test_without_a_guard_a_run_equals_the_stock_trainers_bit_for_bit(tmp_path):
    args = {"gradient_accumulation_steps": 2}
    guarded = trainer(tmp_path, guard="none", args=args)
    stock = Trainer(
        llama(),
        arguments(
            tmp_path,
            max_steps=3,
            per_device_train_batch_size=2,
            optim="sgd",
            learning_rate=RATE,
            **args,
        ),
        data_collator=pad,
        train_dataset=rows(40, 1),
    )
    guarded.train()
    stock.train()
    assert not curve(guarded, "loss_protected")
    assert curve(guarded) == curve(stock) and torch.equal(flat(guarded.model), flat(stock.model))


def test_a_resumed_run_is_the_same_run(tmp_path):
    args = {"max_steps": 5, "save_strategy": "steps", "save_steps": 3, "optim": "adamw_torch"}
    whole = trainer(tmp_path, args=args)
    whole.train()
    resumed = trainer(tmp_path, args=args)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert curve(resumed) == curve(whole) and torch.equal(flat(resumed.model), flat(whole.model))


def test_the_divergence_has_a_gradient_of_exactly_zero_at_the_start(tmp_path):
    """With dropout too: it is off where the model is compared with the start model, and then on
    again.
    """
    found = []
    for guard in ("none", "kl"):
        model = llama()
        model.model.layers[0].self_attn.attention_dropout = 0.5
        model.model.layers[1].mlp.act_fn = nn.Sequential(nn.SiLU(), nn.Dropout(0.5))
        run = trainer(tmp_path, model=model, guard=guard, args={"max_steps": 1})
        run.train()
        found.append(flat(model))
    assert torch.equal(*found)
    assert model.model.layers[0].self_attn.attention_dropout == 0.5
    assert model.model.layers[1].mlp.act_fn[1].training


def test_adapters_of_an_earlier_training_belong_to_the_start_model(tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft")
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.3)
    start = copy.deepcopy(model)
    run = trainer(
        tmp_path, model=model, protect_weight=WEIGHT, args={"max_steps": 2, "learning_rate": 0.5}
    )
    run.train()
    assert run._start and all("lora_" in name for name in run._start)
    assert not torch.equal(flat(model), flat(start))
    for name, parameter in start.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(run._start[name], parameter)


def test_forgetting_is_the_change_of_the_mean_loss_over_tokens(tmp_path):
    # The first token has a label, as usual, but nothing predicts it.
    held_out = [row | {"labels": row["input_ids"]} for row in rows(7, 5)]
    seen = Seen()
    args = {
        "per_device_eval_batch_size": 3,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "max_steps": 4,
    }
    run = trainer(
        tmp_path,
        protect_eval_dataset=held_out,
        eval_dataset=rows(4, 6),
        callbacks=[seen],
        guard="none",
        args=args,
    )

    def mean(model: nn.Module) -> float:
        with torch.no_grad():
            losses, counted = token_losses(model.eval(), pad(held_out))
        return float(losses.sum() / counted.sum())

    before, start = mean(run.model), weights_of(run.model)
    run.train()
    lost = curve(run, "eval_forgetting")
    assert len(lost) == 2 and all("eval_forgetting" in names for names in seen.metrics)
    assert lost[-1] == pytest.approx(mean(run.model) - before, rel=1e-4) and lost[-1] != 0
    found = averages(run.model, start, run.forgetting, [0, 1])
    assert found == pytest.approx({0: 0, 1: lost[-1]}, abs=1e-7)


@pytest.mark.parametrize(
    ("settings", "culprit"),
    [
        ({"guard": "gem"}, "guard"),
        ({"protect_dataset": None}, "protect_dataset="),
        ({"protect_eval_dataset": []}, "protect_eval_dataset="),
        ({"protect_weight": -1}, "protect_weight"),
        ({"protect_batch_size": 0}, "protect_batch_size"),
        ({"args": {"metric_for_best_model": "eval_forgetting"}}, "greater_is_better"),
    ],
)
def test_wrong_settings_are_refused(tmp_path, settings, culprit):
    with pytest.raises(ValueError, match=culprit):
        trainer(tmp_path, **settings)


def test_protected_data_without_labels_that_count_are_refused(tmp_path):
    row = {"input_ids": [3, 4, 5, 6], "labels": [-100] * 4}

    def collator(batch: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        return {name: torch.tensor([x[name] for x in batch]) for name in row}

    run = trainer(tmp_path, protect_dataset=[row] * 4, protect_collator=collator)
    with pytest.raises(ValueError, match="protect_dataset"):
        run.train()
