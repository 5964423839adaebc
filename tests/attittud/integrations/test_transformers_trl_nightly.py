"""TRL's trainers under the mixin, and LoRA models: their losses, shared out among the examples."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("trl")
pytest.importorskip("peft")

from peft import LoraConfig
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from trl_trainers import MAKE, GuidedDPO, GuidedSFT, make_model, make_tokenizer, pairs, text

from attittud import preset
from attittud.integrations.objective import Cut
from tests.helpers.trainers import SUM, WARNINGS, arguments, curve, summed

pytestmark = [*WARNINGS, pytest.mark.usefixtures("offline"), pytest.mark.nightly]


def sft(
    folder: Path, cls: type = GuidedSFT, *, guide: Any = SUM, peft: Any = None, **settings: Any
) -> GuidedSFT:
    return cls(
        model=make_model(),
        args=arguments(folder, SFTConfig, max_length=16, **settings),
        train_dataset=text(20, [1], 1),
        processing_class=make_tokenizer(),
        peft_config=peft,
        auxiliary_datasets={"web": text(12, [1, -1], 2)},
        guide=guide,
    )


def dpo(folder: Path, cls: type = GuidedDPO, **settings: Any) -> GuidedDPO:
    return cls(
        model=make_model(),
        ref_model=make_model(),
        args=arguments(folder, DPOConfig, max_length=24, **settings),
        train_dataset=pairs(20, 1),
        processing_class=make_tokenizer(),
        auxiliary_datasets={"web": pairs(12, 5)},
        guide=SUM,
    )


@pytest.mark.parametrize("kind", MAKE)
def test_the_example_resumes_to_the_same_run(tmp_path, kind):
    """A checkpoint after 4 steps, in the middle of an interval of 3. DPO also has plain text."""
    settings = {"max_steps": 6, "save_steps": 4, "disable_tqdm": True}
    whole, resumed = (MAKE[kind](str(tmp_path), **settings) for _ in range(2))
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    for name in ("loss", "loss_primary", "loss_updown", "attittud/share_harmful"):
        assert len(curve(whole, name)) == 6 and curve(resumed, name) == curve(whole, name)
    assert curve(whole, "loss_updown")[-1] < curve(whole, "loss_updown")[0]


@pytest.mark.parametrize(
    ("make", "guided", "stock", "accumulated"),
    [(sft, GuidedSFT, SFTTrainer, 3), (dpo, GuidedDPO, DPOTrainer, 2)],
)
def test_equal_weights_reproduce_the_stock_trainer(tmp_path, make, guided, stock, accumulated):
    runs = []
    for cls in (guided, summed(guided, stock)):
        trainer = make(tmp_path, cls, gradient_accumulation_steps=accumulated)
        trainer.train()
        runs.append(curve(trainer))
    assert runs[0] == pytest.approx(runs[1], rel=2e-5)


@pytest.mark.parametrize("loss_type", [["sigmoid"], ["ipo"], ["hinge", "sigmoid_norm"]])
def test_each_dpo_pair_has_the_gradient_of_a_batch_with_this_pair_alone(tmp_path, loss_type):
    trainer = dpo(tmp_path, loss_type=loss_type)
    trainer.model.eval()
    parameters = list(trainer.model.parameters())
    with torch.no_grad():
        for parameter in parameters:
            # away from the reference, where all pairs look alike
            parameter.add_(0.3 * torch.randn_like(parameter))
    inputs = next(iter(trainer.get_train_dataloader()))
    pairs = inputs["input_ids"].shape[0] // 2
    cut = Cut(trainer.model)
    loss = trainer.compute_loss(cut, dict(inputs))
    losses = cut.per_example(loss, 2, "DPO")
    assert losses.shape == (pairs,) and torch.allclose(losses.mean(), loss)
    for i in range(pairs):
        alone = trainer.compute_loss(
            trainer.model, {name: value[[i, i + pairs]] for name, value in inputs.items()}
        )
        expected = torch.autograd.grad(alone, parameters)
        found = torch.autograd.grad(losses[i], parameters, retain_graph=True)
        scale = max(float(gradient.abs().max()) for gradient in expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5 * max(scale, 1e-3))


def test_lora_adapters_are_trained(tmp_path):
    """Only the adapters move, and a resumed run is the same run."""
    peft = LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    guide = {**preset("drop_harmful"), "rank": 3, "refresh_every": 2}
    settings = {
        "guide": guide,
        "peft": peft,
        "bf16": True,
        "save_strategy": "steps",
        "save_steps": 3,
    }
    trainer = sft(tmp_path, **settings)
    before = {name: parameter.clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    moved = {
        name
        for name, parameter in trainer.model.named_parameters()
        if not torch.equal(parameter, before[name])
    }
    assert moved and all("lora_" in name for name in moved)
    assert trainer.guide is not None and set(trainer.guide.shared_parameters) == moved
    resumed = sft(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert curve(resumed) == curve(trainer) and len(curve(resumed)) == 6
