"""Lightning: a guided backward instead of `manual_backward`."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning_module import Closer, make_trainer
from torch.nn.utils import parameters_to_vector

from attittud import Eta, Guide
from attittud.integrations.lightning import STATE_KEY, AttittudMixin
from tests.helpers.processes import exit_code

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
    "ignore:The '.*_dataloader' does not have many workers",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:Starting from v1.9.0, `tensorboardX` has been removed",
)

QUIET = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}


class Curve(Callback):
    """What was logged after each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.steps.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def run(
    folder: Path, module: LightningModule, *, resume: bool = False, **settings: Any
) -> list[dict[str, float]]:
    curve = Curve()
    trainer = make_trainer(str(folder), [curve], **(QUIET | settings))
    trainer.fit(module, ckpt_path=str(folder / "last.ckpt") if resume else None)
    return curve.steps


def closer(cls: type[LightningModule] = Closer, **guide: Any) -> LightningModule:
    seed_everything(0, verbose=False)
    return cls(**guide)


KILLED = """
import os, signal
from lightning.pytorch import Callback, seed_everything
from lightning_module import Closer, make_trainer

class Kill(Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 10:
            os.kill(os.getpid(), signal.SIGKILL)

seed_everything(0)
make_trainer({folder!r}, [Kill()], logger=False, enable_progress_bar=False, accelerator="cpu").fit(Closer())
"""


@pytest.mark.nightly
def test_a_killed_run_resumes_to_the_same_losses(tmp_path):
    """Killed at step 10, in the third epoch; the basis at the end of the second is stale."""
    assert exit_code(KILLED.format(folder=str(tmp_path))) == -signal.SIGKILL
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)[STATE_KEY]
    assert saved["since_refresh"] == 2 and saved["refreshes"] == 3
    resumed = run(tmp_path, closer(), resume=True)
    whole = run(tmp_path / "whole", closer())
    assert len(whole) == 20 and resumed == whole[8:]


@pytest.mark.parametrize("wrong", [1, {"version": 1}], ids=repr)
def test_a_checkpoint_entry_of_a_wrong_type_is_refused(tmp_path, wrong):
    run(tmp_path, closer(), max_epochs=1)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    torch.save(saved | {STATE_KEY: wrong}, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match="entry 'attittud'"):
        run(tmp_path, closer(), resume=True)


class Stock(Closer):
    """The summed objective through Lightning's own backward."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        primary, auxiliary = (
            self.losses(name, batch[name]).mean() for name in ("primary", "auxiliary")
        )
        self.manual_backward(primary + auxiliary)
        self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        optimizer.step()
        self.log_dict({"loss_primary": primary.detach(), "loss_auxiliary": auxiliary.detach()})


def test_equal_weights_reproduce_plain_training(tmp_path):
    guided = run(tmp_path / "a", closer(eta=Eta(neutral=1, helpful=1, harmful=1)))
    stock = run(tmp_path / "b", closer(Stock))
    for mine, theirs in zip(guided, stock, strict=True):
        assert {name: mine[name] for name in theirs} == pytest.approx(theirs, rel=2e-5)
    for step in guided:
        found = sum(step[f"attittud/share_{part}"] for part in ("neutral", "helpful", "harmful"))
        assert found == pytest.approx(1)


class Plain(AttittudMixin, LightningModule):
    """SGD, which shows the size of a gradient as Adam does not."""

    def __init__(self, micro_batches: int = 1) -> None:
        super().__init__()
        self.guide_settings = {"eta": Eta(neutral=1, helpful=1, harmful=-1), "rank": 3}
        self.layer = torch.nn.Linear(4, 3)
        self.micro_batches = micro_batches
        self.before = self.after = 0

    def losses(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x).square().mean(1), self.layer(x + 1).sin().mean()

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        if self.micro_batches == 1:
            self.guided_backward(*self.losses(batch), log=False)
        else:
            parts = [self.losses(part) for part in batch.chunk(self.micro_batches)]
            for primary, _ in parts:
                self.guide.primary(self.scaled(primary / self.micro_batches))
            for _, auxiliary in parts:
                self.guide.auxiliary(self.scaled(auxiliary / self.micro_batches))
            self.guide.combine()
            self.finish_backward()
        optimizer.step()

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.before += 1

    def on_after_backward(self) -> None:
        self.after += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(
            torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), batch_size=8
        )


def expected() -> torch.Tensor:
    """One step without Lightning."""
    module = closer(Plain)
    (batch,) = module.train_dataloader()
    Guide(module.layer, **module.guide_settings).backward(*module.losses(batch))
    torch.optim.SGD(module.layer.parameters(), lr=0.1).step()
    return parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_step_equals_a_step_of_a_guide_alone(tmp_path, micro_batches):
    module = closer(Plain, micro_batches=micro_batches)
    run(tmp_path, module, max_epochs=1)
    assert torch.allclose(
        parameters_to_vector(module.parameters()), expected(), rtol=1e-5, atol=1e-7
    )
    assert (module.before, module.after) == (2 * micro_batches, 1)


def test_the_precision_plugin_scales_the_losses(tmp_path):
    """Without scaling the update would be 1024 times too small."""
    module = closer(Plain)
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    run(tmp_path, module, max_epochs=1, plugins=[plugin])
    moved = parameters_to_vector(module.parameters()) - parameters_to_vector(
        closer(Plain).parameters()
    )
    right = expected() - parameters_to_vector(closer(Plain).parameters())
    assert torch.linalg.vector_norm(moved - right) < 0.05 * torch.linalg.vector_norm(right)


class Judged(Closer):
    """A part of the auxiliary pairs judge: something is earned within a few steps."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        judges = [part[:8] for part in batch["auxiliary"]]
        primary, auxiliary = (self.losses(name, batch[name]) for name in ("primary", "auxiliary"))
        self.guided_backward(
            primary, auxiliary.mean(), judge=lambda: self.losses("auxiliary", judges)
        )
        optimizer.step()
        self.log_dict({"loss_primary": primary.detach().mean()})


def test_eta_auto_works_with_judges(tmp_path):
    auto = {"eta": "auto", "judge_every": 1}
    run(tmp_path, closer(Judged, **auto), max_epochs=3)
    resumed = run(tmp_path, closer(Judged, **auto), resume=True, max_epochs=4)
    whole = run(tmp_path / "whole", closer(Judged, **auto), max_epochs=4)
    assert resumed == whole[12:]
    weights = [
        step[f"attittud/weight_{part}"]
        for step in whole
        for part in ("neutral", "helpful", "harmful")
    ]
    assert all(0 <= weight <= 1 for weight in weights) and weights[0] == 0 and any(weights)


@pytest.mark.parametrize("name", ["FSDPStrategy", "DeepSpeedStrategy"])
def test_strategies_that_hide_gradients_are_refused(tmp_path, name):
    """They are refused by name: neither strategy can be made without its GPUs."""
    hiding = type(name, (SingleDeviceStrategy,), {})
    with pytest.raises(ValueError, match=name):
        run(tmp_path, closer(Plain), strategy=hiding(device="cpu"), max_epochs=1)
