"""A comparison and a run to report on."""

from pathlib import Path

import pytest

from attittud_lab.compare.run import compare
from attittud_lab.report import write_report
from tests.helpers.comparisons import config

LONGER = ["training.guided.steps=24", "training.guided.evaluations=4", "log_every=2"]
LONGER += ["training.finetune.steps=8", "training.finetune.evaluations=2"]


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "compare"
    compare(config(*LONGER, "compare.strategies=[drop_harmful]"), folder)
    write_report(folder)
    return folder


@pytest.fixture(scope="session")
def run_dir(comparison: Path) -> Path:
    (found,) = comparison.glob("runs/flip/weight-1/steps-24-8/seed-0")
    return found
