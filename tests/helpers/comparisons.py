"""A small finished comparison, and which runs were trained for it."""

from pathlib import Path
from typing import Any

import pytest

from attittud_lab.compare import runs as module
from attittud_lab.compare.run import compare
from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config

JOB = """
data:
  primary: {path: digits, train: 60, validation: 100, test: 200}
  auxiliary: {more: {path: digits, examples: 300}}
model: {name: mlp, width: 8}
training:
  guided: {steps: 12, evaluations: 2, primary_batch: 16, batch_size: 16, lr: 0.02}
  finetune: {steps: 4, evaluations: 1, primary_batch: 16, lr: 0.01}
strategy: {name: flip, rank: 3}
log_every: 6
compare: {seeds: 2, tuning_seeds: 1, strategies: [flip], weights: [0.3, 1]}
"""


def config(*overrides: str) -> Config:
    return loads(JOB, overrides)


class Trainings(list[Path]):
    """Which runs were trained, as opposed to read."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    found, original = Trainings(), module.train

    def spy(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if not result.skipped:
            found.append(options["run_dir"])
        return result

    monkeypatch.setattr(module, "train", spy)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("comparison")
    return folder, compare(config(), folder)
