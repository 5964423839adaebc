"""Runs that are interrupted, and what a run leaves behind."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from attittud_lab import files
from attittud_lab.config.load import loads
from attittud_lab.training.train import run
from tests.helpers.runs import metrics_of

# Dropout, a refresh interval and a logging interval that do not divide the checkpoints', momentum
# in the optimizer, BatchNorm's buffers, and a learning rate with which the last model is not the
# best: all that a resumed run could get wrong.
JOB = """
data:
  primary: {path: digits, train: 60, validation: 60, test: 200}
  auxiliary: {more: {path: digits, examples: 400}, few: {path: digits, classes: ["1", "7"]}}
model: {name: wideresnet-10-1, dropout: 0.2}
training:
  guided: {steps: 30, evaluations: 4, primary_batch: 16, batch_size: 16, schedule: plateau, lr: 0.2}
  finetune: {steps: 10, evaluations: 4, primary_batch: 16, schedule: cosine}
  reset_head: true
log_every: 2
checkpoint_every: 3
strategy: {name: flip, rank: 3, refresh_every: 4, basis_batch: 20}
"""


def train_to_end(folder: Path, strategy: str | None = None, model: str = "mlp") -> None:
    torch.set_num_threads(1)
    config = loads(JOB, [f"model.name={model}"])
    run(config, 0, strategy or config.strategy, folder)


def outcome(folder: Path) -> tuple[Any, Any, bytes]:
    """All that a run leaves but the clock's readings."""
    result = json.loads((folder / "result.json").read_text())
    for phase in result["phases"]:
        del phase["seconds"]
    lines = metrics_of(folder)
    for line in lines:
        del line["seconds"]
    return result, lines, (folder / "weights.safetensors").read_bytes()


@contextmanager
def killed_at_first_checkpoint() -> Iterator[None]:
    """A run inside is interrupted when its first checkpoint is there."""
    original = files.write_atomically

    def stop(path: Path, content: bytes) -> None:
        original(path, content)
        if path.name.startswith("checkpoint"):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attittud_lab.runs.folder.write_atomically", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


def unfinished(folder: Path) -> Path:
    """A folder as a killed run leaves it; returns its checkpoint."""
    with killed_at_first_checkpoint():
        train_to_end(folder)
    return folder / "checkpoint.safetensors"
