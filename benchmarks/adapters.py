"""The time that an adapter adds to a guided step: the same calls inside a framework and in a
hand-written loop.

    python benchmarks/adapters.py benchmarks/adapters.json      # needs a GPU, about two minutes

GPT-2 small, 16 primary and 16 auxiliary sequences of 64 to 128 random tokens, rank 10, a refresh
every 10 steps. Milliseconds of a step without the optimizer, the mean over three whole refresh
intervals after one to warm up. The jobs take turns; the better of two rounds counts.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from attittud import Guide, preset
from attittud.integrations.lightning import AttittudMixin
from attittud.integrations.transformers import AttittudTrainer
from attittud.losses import per_sequence

LENGTH = 128
VOCABULARY = 50304
BATCH = 16
STEPS = 40
WARM_UP = 10
ROUNDS = 2
GUIDE = {**preset("drop_harmful"), "rank": 10, "refresh_every": 10, "engine": "loop"}
PRECISIONS = {"bf16": torch.bfloat16, "fp32": None}


def sequences(count: int, seed: int) -> list[dict[str, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    data = []
    for _ in range(count):
        tokens = torch.randint(VOCABULARY, (LENGTH,), generator=random)
        counts = torch.arange(LENGTH) < torch.randint(
            LENGTH // 2, LENGTH + 1, (1,), generator=random
        )
        data.append(
            {
                "input_ids": tokens,
                "attention_mask": counts.long(),
                "labels": tokens.where(counts, -100),
            }
        )
    return data


PRIMARY = sequences(BATCH * STEPS, seed=1)
AUXILIARY = sequences(BATCH * STEPS, seed=2)


def batch(data: list[dict[str, Tensor]], step: int) -> dict[str, Tensor]:
    rows = data[BATCH * step : BATCH * (step + 1)]
    return {name: torch.stack([row[name] for row in rows]).cuda() for name in rows[0]}


def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH)).cuda()


class Clock:
    """Times calls of one method, waiting for the device before and after."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            torch.cuda.synchronize()
            start = time.perf_counter()
            result = method(*args, **kwargs)
            torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - start)
            return result

        return timed

    @property
    def milliseconds(self) -> float:
        counted = self.seconds[WARM_UP:STEPS]
        return 1e3 * sum(counted) / len(counted)


def trainer(precision: str, *, guided: bool) -> float:
    clock = Clock()
    chosen = {} if precision == "fp32" else {precision: True}
    arguments = TrainingArguments(
        "unused",
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **chosen,
    )
    more = {"auxiliary_datasets": {"auxiliary": AUXILIARY}, "guide": GUIDE} if guided else {}
    run = (AttittudTrainer if guided else Trainer)(
        model=model(), args=arguments, train_dataset=PRIMARY, **more
    )
    run.training_step = clock(run.training_step)
    run.train()
    return clock.milliseconds


def losses_by_hand(network: Any, step: int, precision: str) -> tuple[Tensor, Tensor]:
    primary = batch(PRIMARY, step)
    auxiliary = batch(AUXILIARY, step)
    kind = PRECISIONS[precision]
    labels = primary.pop("labels")
    with torch.autocast("cuda", kind, enabled=kind is not None):
        logits = network(**primary).logits
        loss = network(**auxiliary).loss
    return per_sequence(logits, labels, reduction="sum") * (
        BATCH / labels[:, 1:].ne(-100).sum()
    ), loss


def by_hand(precision: str, *, joint: bool = False) -> float:
    """The Trainer frees the primary graph before it builds the auxiliary one; `joint` holds both,
    as Lightning's example.
    """
    network, clock = model(), Clock()
    guide, optimizer = (
        Guide(network, **GUIDE),
        torch.optim.AdamW(network.parameters(), lr=5e-5, fused=True),
    )
    kind = PRECISIONS[precision]

    def step(number: int) -> None:
        if joint:
            primary, auxiliary = losses_by_hand(network, number, precision)
            guide.backward(primary, auxiliary)
            return
        inputs = batch(PRIMARY, number)
        labels = inputs.pop("labels")
        with torch.autocast("cuda", kind, enabled=kind is not None):
            logits = network(**inputs).logits
        losses = per_sequence(logits, labels, reduction="sum") * (
            BATCH / labels[:, 1:].ne(-100).sum()
        )
        guide.primary(losses)
        del logits, losses
        with torch.autocast("cuda", kind, enabled=kind is not None):
            loss = network(**batch(AUXILIARY, number)).loss
        guide.auxiliary(loss)
        guide.combine()

    timed = clock(step)
    for number in range(STEPS):
        timed(number)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return clock.milliseconds


def lightning(precision: str) -> float:
    import lightning.pytorch as pl

    clock = Clock()

    class Module(AttittudMixin, pl.LightningModule):
        guide_settings = GUIDE

        def __init__(self) -> None:
            super().__init__()
            self.network = model()

        @clock
        def training_step(self, number: Tensor, batch_idx: int) -> None:
            # Autocast is on already; losses_by_hand asks for the same.
            self.guided_backward(*losses_by_hand(self.network, batch_idx, precision))

        def on_train_batch_end(self, *_: Any) -> None:
            self.optimizers().step()
            self.optimizers().zero_grad()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=5e-5)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(range(STEPS))

    names = {"bf16": "bf16-mixed", "fp32": "32-true"}
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
    }
    pl.Trainer(max_epochs=1, devices=1, accelerator="gpu", precision=names[precision], **quiet).fit(
        Module()
    )
    return clock.milliseconds


def main() -> None:
    jobs: dict[str, Callable[[str], float]] = {
        "by_hand": by_hand,
        "by_hand_joint": lambda precision: by_hand(precision, joint=True),
        "trainer": lambda precision: trainer(precision, guided=True),
        "lightning": lightning,
        "stock_trainer_primary_only": lambda precision: trainer(precision, guided=False),
    }
    milliseconds: dict[str, dict[str, float]] = {}
    for precision in PRECISIONS:
        rounds: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(ROUNDS):
            for name, job in jobs.items():
                rounds[name].append(job(precision))
                torch.cuda.empty_cache()
        best = {name: min(times) for name, times in rounds.items()}
        best["trainer_overhead_percent"] = 100 * (best["trainer"] / best["by_hand"] - 1)
        best["lightning_overhead_percent"] = 100 * (best["lightning"] / best["by_hand_joint"] - 1)
        milliseconds[precision] = {name: round(value, 2) for name, value in best.items()}
        print(precision, milliseconds[precision], flush=True)
    packages = ("torch", "transformers", "accelerate", "torchmetrics")
    about = {
        "what": __doc__,
        "milliseconds": milliseconds,
        "versions": {name: version(name) for name in packages}
        | {"python": platform.python_version()},
        "hardware": torch.cuda.get_device_name(),
        "revision": os.environ.get("ATTITTUD_REVISION"),
    }
    Path(sys.argv[1]).write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
