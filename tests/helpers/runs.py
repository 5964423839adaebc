"""A small job on the embedded digits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config, StrategyConfig
from attittud_lab.models.build import build_model
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import load_data

JOB = """
data:
  primary: {path: digits, train: 60, validation: 60, test: 200}
  auxiliary: {more: {path: digits, examples: 400}}
model: {name: mlp, width: 16}
training:
  guided: {steps: 12, evaluations: 3, primary_batch: 16, batch_size: 16, lr: 0.02}
  finetune: {steps: 6, evaluations: 2, primary_batch: 16, lr: 0.01}
log_every: 4
strategy: {name: auto, rank: 3, refresh_every: 4}
"""


@pytest.fixture(scope="module")
def job() -> Config:
    return loads(JOB)


def own(name: str) -> StrategyConfig:
    extra = {"eta": {"neutral": 1.0, "helpful": 0.5, "harmful": -1.0}} if name == "custom" else {}
    text = json.dumps({"strategy": {"name": name, "rank": 3, "refresh_every": 4, **extra}})
    return loads(text).strategy


def phase_of(config: Config, metric: str = "accuracy") -> Phase:
    """The first phase of a job, before its first step."""
    data = load_data(config)
    model = build_model(config.model, data, 0).train()
    return Phase("guided", config, data, model, torch.device("cpu"), metric)


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
