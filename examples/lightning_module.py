"""Lightning with a primary and an auxiliary data loader.

    python examples/lightning_module.py runs/lightning            # train
    python examples/lightning_module.py runs/lightning --resume   # go on after a kill, with the same losses

The task: which of two points lies closer to the origin, from 32 labelled pairs. The auxiliary data
are 256 pairs with a third of the labels wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from attittud import Eta
from attittud.integrations.lightning import AttittudMixin


def points(count: int, wrong: float, seed: int) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, 3, generator=random)
    y = x.square().sum(2).argmin(1)
    return TensorDataset(
        x.flatten(1), torch.where(torch.rand(count, generator=random) < wrong, 1 - y, y)
    )


class EpochSampler(RandomSampler):
    """An order that depends on the epoch alone, so that a resumed run sees the same batches.
    Lightning sets the epoch.
    """

    def __init__(self, data: TensorDataset) -> None:
        super().__init__(data, generator=torch.Generator())

    def set_epoch(self, epoch: int) -> None:
        self.generator.manual_seed(epoch)


class Closer(AttittudMixin, LightningModule):
    def __init__(self, **guide: Any) -> None:
        super().__init__()
        self.guide_settings = {
            "eta": Eta(neutral=1, helpful=1, harmful=0),
            "rank": 4,
            "refresh_every": 3,
            **guide,
        }
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.heads = nn.ModuleDict({"primary": nn.Linear(16, 2), "auxiliary": nn.Linear(16, 2)})

    def losses(self, name: str, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return cross_entropy(self.heads[name](self.body(x)), y, reduction="none")

    def training_step(self, batch: dict[str, list[Tensor]], batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        primary = self.losses("primary", batch["primary"])
        auxiliary = self.losses("auxiliary", batch["auxiliary"]).mean()
        self.guided_backward(primary=primary, auxiliary=auxiliary)
        self.clip_gradients(optimizer, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        optimizer.step()
        self.log("loss_primary", primary.detach().mean(), prog_bar=True)
        self.log("loss_auxiliary", auxiliary.detach())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def train_dataloader(self) -> CombinedLoader:
        primary = points(32, wrong=0, seed=1)
        auxiliary = points(256, wrong=0.33, seed=2)
        loaders = {
            "primary": DataLoader(primary, batch_size=8, sampler=EpochSampler(primary)),
            "auxiliary": DataLoader(auxiliary, batch_size=8, sampler=EpochSampler(auxiliary)),
        }
        return CombinedLoader(loaders, mode="min_size")


def make_trainer(folder: str, callbacks: Sequence[Callback] = (), **settings: Any) -> Trainer:
    last = ModelCheckpoint(
        folder, filename="last", enable_version_counter=False, save_on_train_epoch_end=True
    )
    defaults = {"max_epochs": 5, "accelerator": "auto", "devices": 1, "log_every_n_steps": 1}
    return Trainer(
        default_root_dir=folder,
        callbacks=[last, *callbacks],
        enable_model_summary=False,
        **(defaults | settings),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="where checkpoints go")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in the folder"
    )
    options = parser.parse_args(arguments)
    seed_everything(0)
    last = None
    if options.resume:
        last = str(Path(options.folder) / "last.ckpt")
    make_trainer(options.folder).fit(Closer(), ckpt_path=last)


if __name__ == "__main__":
    main()
