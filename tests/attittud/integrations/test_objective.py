"""The Trainer's loss as a vector over the examples: own loss functions, fused and foreign
losses.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra 'transformers'")


pytest.importorskip("accelerate", reason="needs the extra 'transformers'")


import transformers

from attittud.integrations.objective import Cut
from attittud.integrations.transformers import AttittudTrainer
from attittud.losses import per_sequence
from tests.helpers.pages import DOCS, blocks
from tests.helpers.trainers import SUM, WARNINGS, arguments, curve, llama, sequences

pytestmark = WARNINGS


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()


def test_a_users_own_loss_functions_are_used(tmp_path: Path) -> None:
    """Every sequence the same weight on the primary side, a loss of another kind on the auxiliary
    side.
    """
    seen = []

    def primary(model: Any, inputs: Any) -> torch.Tensor:
        labels = inputs.pop("labels")
        losses = per_sequence(model(**inputs).logits, labels)
        seen.append(losses.detach())
        return losses

    trainer = AttittudTrainer(
        model=llama(),
        args=arguments(tmp_path, gradient_accumulation_steps=2, max_steps=2),
        train_dataset=sequences(16, [1], 1),
        auxiliary_datasets={"flat": sequences(12, [1], 2)},
        guide=SUM,
        primary_losses=primary,
        auxiliary_losses={"flat": lambda model, inputs: model(**inputs).logits.square().mean()},
    )
    trainer.train()
    expected = [float(torch.stack(seen[i : i + 2]).mean()) for i in (0, 2)]
    assert curve(trainer, "loss_primary") == pytest.approx(expected, rel=1e-6)
    assert all(loss < 0.1 for loss in curve(trainer, "loss_flat"))


def test_auxiliary_data_with_other_labels_train_an_output_layer_of_their_own(
    tmp_path: Path,
) -> None:
    """The function of docs/frameworks.md: four auxiliary labels beside a model of two."""
    (block,) = (
        x
        for x in blocks((DOCS / "frameworks.md").read_text("utf-8"), "python")
        if "def other_loss" in x
    )
    exec(block, names := dict[str, Any]())

    def examples(count: int, labels: int) -> list[dict[str, torch.Tensor]]:
        rows = torch.arange(count)[:, None] + torch.arange(6)
        mask = torch.ones(6, dtype=torch.long)
        return [
            {"input_ids": row % 20, "attention_mask": mask, "labels": row[0] % labels}
            for row in rows
        ]

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=20, **sizes)
    )
    model.other = torch.nn.Linear(model.config.hidden_size, 4)
    before = model.other.weight.detach().clone()
    trainer = AttittudTrainer(
        model=model,
        args=arguments(tmp_path, max_steps=2),
        train_dataset=examples(16, 2),
        auxiliary_datasets={"web": examples(16, 4)},
        guide=SUM,
        **names["settings"],
    )
    trainer.train()
    assert not torch.equal(model.other.weight, before)
    assert all(
        1.0 < loss < 2.0 for loss in curve(trainer, "loss_web")
    )  # log 4 where nothing has been learned


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


def test_a_fused_loss_is_allowed_only_for_auxiliary_data(tmp_path: Path) -> None:
    def trainer(always: bool) -> AttittudTrainer:
        return AttittudTrainer(
            model=Silent(llama(), always),
            args=arguments(tmp_path, max_steps=2, remove_unused_columns=False),
            train_dataset=sequences(16, [1], 1),
            auxiliary_datasets=sequences(16, [1], 2),
            guide=SUM,
        )

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


def test_each_pair_of_rows_has_the_gradient_of_a_batch_with_this_pair_alone() -> None:
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
