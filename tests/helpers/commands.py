"""A small job, and commands as a person types them."""

import json
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.cli import main

JOB = """
data:
  primary: {path: digits, train: 60, validation: 60, test: 200}
  auxiliary: {more: {path: digits, examples: 300}}
model: {name: mlp, width: 8}
training:
  guided: {steps: 6, evaluations: 1, primary_batch: 16, batch_size: 16}
  finetune: {steps: 4, evaluations: 1, primary_batch: 16}
strategy: {name: auto, rank: 3}
"""
FEW_RUNS = (
    "compare.strategies=[]",
    "compare.seeds=2",
    "compare.weights=[0.5, 1]",
    "compare.tuning_seeds=1",
    "compare.equal=steps",
)
"""The smallest comparison."""


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code of a command, its output and its errors."""
    code = call(*map(str, arguments))
    out, err = capsys.readouterr()
    return code, out, err


def flip_result(folder: Path, *settings: str) -> dict[str, Any]:
    """The result of strategy flip on the small job, with settings from outside of the package."""
    (folder / "job.yaml").write_text(JOB)
    settings = ("strategy.name=flip", f"output={folder}/runs", *settings)
    assert call("train", f"{folder}/job.yaml", *settings) == 0
    return json.loads((folder / "runs/job/flip/seed-0/result.json").read_text())
