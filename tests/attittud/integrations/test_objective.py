"""The Trainer's loss as a vector over the examples: own, fused and foreign losses."""

from typing import Any

import pytest
import torch
import transformers

from attittud.integrations.objective import Cut
from attittud.integrations.transformers import AttittudTrainer
from attittud.losses import per_sequence
from tests.helpers.pages import DOCS, blocks
from tests.helpers.trainers import WARNINGS, classifier, curve, guided, llama, sequences

pytestmark = WARNINGS


def test_a_users_own_loss_functions_are_used(tmp_path):
    """Every sequence has the same weight; the auxiliary loss is of another kind."""
    seen = []

    def primary(model: Any, inputs: Any) -> torch.Tensor:
        labels = inputs.pop("labels")
        losses = per_sequence(model(**inputs).logits, labels)
        seen.append(losses.detach())
        return losses

    trainer = guided(
        tmp_path,
        {"gradient_accumulation_steps": 2, "max_steps": 2},
        auxiliary_datasets={"flat": sequences(12, [1], 2)},
        primary_losses=primary,
        auxiliary_losses={"flat": lambda model, inputs: model(**inputs).logits.square().mean()},
    )
    trainer.train()
    expected = [float(torch.stack(seen[i : i + 2]).mean()) for i in (0, 2)]
    assert curve(trainer, "loss_primary") == pytest.approx(expected, rel=1e-6)
    assert all(loss < 0.1 for loss in curve(trainer, "loss_flat"))


def test_auxiliary_data_with_other_labels_train_an_output_layer_of_their_own(tmp_path):
    """The function of docs/frameworks.md: four auxiliary labels beside a model of two."""
    (block,) = (
        x
        for x in blocks((DOCS / "frameworks.md").read_text("utf-8"), "python")
        if "def other_loss" in x
    )
    exec(block, names := dict[str, Any]())

    def examples(labels: int) -> list[dict[str, torch.Tensor]]:
        rows = torch.arange(16)[:, None] + torch.arange(6)
        mask = torch.ones(6, dtype=torch.long)
        return [
            {"input_ids": row % 20, "attention_mask": mask, "labels": row[0] % labels}
            for row in rows
        ]

    model = classifier(labels=2)
    model.other = torch.nn.Linear(model.config.hidden_size, 4)
    before = model.other.weight.detach().clone()
    data = {"train_dataset": examples(2), "auxiliary_datasets": {"web": examples(4)}}
    trainer = guided(tmp_path, {"max_steps": 2}, model=model, **data, **names["settings"])
    trainer.train()
    assert not torch.equal(model.other.weight, before)
    # log 4 where nothing has been learned
    assert all(1.0 < loss < 2.0 for loss in curve(trainer, "loss_web"))


class Silent(torch.nn.Module):
    """A fused loss: no logits while it trains with labels."""

    def __init__(self, model: torch.nn.Module, always: bool) -> None:
        super().__init__()
        self.model, self.config, self.always = model, model.config, always
        self.fused = 0

    def forward(self, labels: Any = None, **inputs: Any) -> Any:
        outputs = self.model(labels=labels, **inputs)
        if self.training and (labels is not None or self.always):
            self.fused += labels is not None
            outputs["logits"] = None
        return outputs


def test_a_fused_loss_is_allowed_only_for_auxiliary_data(tmp_path):
    def trainer(always: bool) -> AttittudTrainer:
        args = {"max_steps": 2, "remove_unused_columns": False}
        return guided(tmp_path, args, model=Silent(llama(), always))

    with pytest.raises(ValueError, match="Silent"):
        trainer(always=True).train()
    allowed = trainer(always=False)
    allowed.train()
    assert allowed.model.fused == 2


class Pairs(torch.nn.Module):
    """One number for each row; the chosen answers come first, then the rejected ones."""

    def __init__(self) -> None:
        super().__init__()
        self.score = torch.nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> Any:
        return transformers.modeling_outputs.SequenceClassifierOutput(logits=self.score(x).tanh())


def test_each_pair_of_rows_has_the_gradient_of_a_batch_with_this_pair_alone():
    def loss_of(model: Any, x: torch.Tensor) -> torch.Tensor:
        chosen, rejected = model(x).logits.chunk(2)
        return -torch.nn.functional.logsigmoid(3 * (chosen - rejected)).mean()

    model, x = Pairs(), torch.randn(6, 4, dtype=torch.float64)
    cut = Cut(model)
    loss = loss_of(cut, x)
    losses = cut.per_example(loss, 2, "pairs")
    assert losses.shape == (3,) and torch.allclose(losses.mean(), loss)
    weights = [model.score.weight]
    for i in range(3):
        (expected,) = torch.autograd.grad(loss_of(model, x[[i, i + 3]]), weights)
        (found,) = torch.autograd.grad(losses[i], weights, retain_graph=True)
        assert torch.allclose(found, expected)
