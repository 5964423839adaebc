"""A small job on the embedded digits."""

import json

import pytest

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config, StrategyConfig

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
