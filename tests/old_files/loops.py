"""The small models and training loops behind these files, by the public interface alone.

`make_old_files.py` made the files with them and the test goes on with them: what a step computes must stay as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from attittud import Eta, Guide, preset

BEFORE = 7  # steps until a guide is saved: two into the second interval
INTERVAL = 5

SETTINGS: dict[str, dict[str, Any]] = {
    "sketch": {"eta": Eta(1, 1, -1), "basis": "sketch"},
    "svd": {"eta": Eta(1, 0.5, -1), "basis": "svd", "primary_weight": 0.5},
    "auto": {"eta": "auto", "judge_every": 2},
    "mean": {"eta": Eta(1, 1, 0), "basis": "mean"},
    "canonical": {"eta": Eta(1, 1, 0), "basis": "canonical"},
    "exact": {"eta": Eta(1, 0, 0), "basis": "exact"},
    "random": {"eta": Eta(1, 0, -1), "basis": "random"},
    "named": {
        "eta": {"one": Eta(1, 1, -0.5), "two": "auto"},
        "judge_every": 3,
        "include_mean": True,
        "auxiliary_weight": {"one": 0.5, "two": 1.0},
    },
    "bf16": {"eta": Eta(1, 1, 0), "basis_dtype": torch.bfloat16},
    "double": {"eta": Eta(1, 1, 0), "engine": "batched"},
    "implicit": {"eta": Eta(1, 1, 0), "basis": "exact", "engine": "implicit"},
    "part": {"eta": Eta(1, 1, 0), "parameters": lambda name, _: not name.startswith("body.0")},
    "without_basis": {"eta": Eta(1, 1, -1)},
    "sharded": {"eta": Eta(1, 1, -1), "engine": "loop"},
}


class Model(nn.Module):
    """A body and three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh())
        self.heads = nn.ModuleDict({name: nn.Linear(5, 3) for name in ("primary", "one", "two")})

    def forward(self, x: Tensor, head: str) -> Tensor:
        return self.heads[head](self.body(x))


def make_data(steps: int = 12) -> dict[str, Tensor]:
    """Batches for every step: which of three corners a point is nearest to; `two` has other labels."""
    random = torch.Generator().manual_seed(1)
    data = {}
    for name in ("primary", "one", "two", "judge"):
        x = torch.randn(steps, 8, 4, generator=random)
        data[f"{name}_x"], data[f"{name}_y"] = x, x[..., :3].argmax(2)
    data["two_y"] = (data["two_y"] + 1) % 3
    return data


class Loop:
    """A model, an optimizer and a guide in training; batches depend on the number of the step alone."""

    def __init__(self, setting: str, data: dict[str, Tensor], init: int = 0, wrap: Any = None) -> None:
        torch.manual_seed(init)
        self.setting, self.data = setting, data
        self.model = Model().double() if setting == "double" else Model()
        if wrap is not None:
            self.model = wrap(self.model)
        if setting == "sketch":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        else:
            momentum = 0.9 if setting in ("svd", "canonical") else 0.0
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=momentum)
        self.guide = Guide(self.model, **{"rank": 3, "refresh_every": INTERVAL, "seed": 4} | SETTINGS[setting])

    def losses(self, name: str, step: int, head: str | None = None, at: slice = slice(None)) -> Tensor:
        x, y = self.data[f"{name}_x"][step, at], self.data[f"{name}_y"][step, at]
        x = x.to(next(self.model.parameters()).dtype)
        return cross_entropy(self.model(x, head or name), y, reduction="none")

    def train(self, first: int, steps: int, at: slice = slice(None)) -> None:
        for i in range(first, first + steps):
            self.optimizer.zero_grad()

            def judge(step: int = i) -> Tensor:
                return self.losses("judge", step, "primary")

            more = {"judge": judge} if self.setting in ("auto", "named") else {}
            one: Any = self.losses("one", i, at=at).mean()
            auxiliary = {"one": one, "two": self.losses("two", i).mean()} if self.setting == "named" else one
            if self.setting == "implicit":  # it has to see the forward pass
                self.guide.backward(lambda step=i: self.losses("primary", step, at=at), auxiliary)
            else:
                self.guide.backward(self.losses("primary", i, at=at), auxiliary, **more)
            self.optimizer.step()

    def save(self) -> dict[str, Any]:
        """Without the model, whose parameters are saved apart."""
        guide = self.guide.state_dict(include_basis=self.setting != "without_basis")
        return {"optimizer": self.optimizer.state_dict(), "guide": guide}

    def load(self, saved: dict[str, Any]) -> None:
        """The parameters come from the first row of `weights`; the caller loads a guide from elsewhere."""
        with torch.no_grad():
            sizes = [parameter.numel() for parameter in self.model.parameters()]
            for parameter, values in zip(self.model.parameters(), saved["weights"][0].split(sizes), strict=True):
                parameter.copy_(values.view_as(parameter))
        if "optimizer" in saved:
            self.optimizer.load_state_dict(saved["optimizer"])
        if "guide" in saved:
            self.guide.load_state_dict(saved["guide"])

    def weights(self) -> Tensor:
        return parameters_to_vector(self.model.parameters()).detach().clone()


# ---------------------------------------------------------------------------------------------- Hugging Face's Trainer


def sequences(count: int, seed: int) -> list[dict[str, Tensor]]:
    """Numbers that go up by one or two."""
    random = torch.Generator().manual_seed(seed)
    starts = torch.randint(16, (count, 1), generator=random)
    rows = (starts + torch.arange(6) * torch.randint(1, 3, (count, 1), generator=random)) % 16
    return [{"input_ids": row, "labels": row} for row in rows]


def make_trainer(cls: Any, folder: Path, steps: int, save_at: int | None = None) -> Any:
    """`cls` is the adapter's Trainer. Dropout is off: a checkpoint then needs no random state."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.set_seed(0)
    sizes = {"vocab_size": 16, "n_positions": 6, "n_embd": 4, "n_layer": 1, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0)
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=steps,
        logging_steps=1,
        save_strategy="no" if save_at is None else "steps",
        save_steps=save_at or 1,
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        bf16=False,
        gradient_accumulation_steps=2,
    )
    return cls(
        model=transformers.GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=sequences(16, 1),
        auxiliary_datasets={"up": sequences(24, 2), "more": sequences(20, 3)},
        judge_dataset=sequences(12, 4),
        guide={"eta": {"up": Eta(1, 1, -1), "more": "auto"}, "rank": 3, "refresh_every": 3, "judge_every": 2},
    )


def trainer_curve(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


# ---------------------------------------------------------------------------------------------- Lightning


def make_module(mixin: Any, data: dict[str, Tensor]) -> Any:
    """`mixin` is the adapter's; it comes before LightningModule."""
    from lightning.pytorch import LightningModule
    from torch.utils.data import DataLoader

    class Corners(mixin, LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.guide_settings = {"eta": Eta(1, 1, 0), "rank": 3, "refresh_every": 3}
            self.inner = Model()
            self.curve: list[float] = []

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
            losses = {
                name: cross_entropy(self.inner(batch[f"{name}_x"][0], name), batch[f"{name}_y"][0], reduction="none")
                for name in ("primary", "one")
            }
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.guided_backward(primary=losses["primary"], auxiliary=losses["one"].mean(), log=False)
            optimizer.step()
            self.curve.append(sum(float(loss.detach().mean()) for loss in losses.values()))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def train_dataloader(self) -> DataLoader:
            return DataLoader([{name: values[i] for name, values in data.items()} for i in range(4)])

    torch.manual_seed(0)
    return Corners()


def fit(module: Any, epochs: int, callbacks: Sequence[Any] = (), checkpoint: str | None = None) -> list[float]:
    """Four steps in an epoch; the summed losses of all steps taken."""
    from lightning.pytorch import Trainer

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, enable_checkpointing=False, callbacks=list(callbacks), **quiet
    )
    trainer.fit(module, ckpt_path=checkpoint)
    return module.curve


# ---------------------------------------------------------------------------------------------- Accelerate


class Progress:
    """The number of the step, which Accelerate does not know."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def accelerated(
    folder: Path, data: dict[str, Tensor], steps: int, *, save_at: int | None = None, resume: bool = False
) -> list[float]:
    """A loop with micro-batches, as in examples/accelerate_loop.py; the summed loss of every step taken."""
    from accelerate import Accelerator

    accelerator, progress = Accelerator(cpu=True), Progress()
    torch.manual_seed(0)
    model = Model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    guide = Guide(model, rank=3, refresh_every=3, **preset("flip"))
    accelerator.register_for_checkpointing(guide, progress)
    if resume:
        accelerator.load_state(str(folder))

    def parts(name: str, step: int) -> Iterator[Tensor]:
        for at in (slice(0, 4), slice(4, 8)):
            x, y = data[f"{name}_x"][step, at], data[f"{name}_y"][step, at]
            yield cross_entropy(model(x, name), y, reduction="none") / 2

    curve = []
    while progress.step < steps:
        total = 0.0
        for losses in parts("primary", progress.step):
            guide.primary(losses)
            total += float(losses.detach().mean())
        for losses in parts("one", progress.step):
            guide.auxiliary(losses.mean())
            total += float(losses.detach().mean())
        guide.combine()
        optimizer.step()
        optimizer.zero_grad()
        progress.step += 1
        curve.append(total)
        if progress.step == save_at:
            accelerator.save_state(str(folder))
    return curve
