"""A run on the digits with a name from outside."""

import json
import tempfile
from pathlib import Path

import pytest

from attittud_lab import cli

ROOT = Path(__file__).parents[2]


def run_digits(overrides: list[str]) -> dict:
    """A few steps of `attittud train` on the digits, as the command runs them."""
    job = "data: {primary: {path: digits, train: 40}, auxiliary: {more: digits}}\nmodel: mlp\nstrategy: flip\n"
    short = [f"training.{phase}.steps=3" for phase in ("guided", "finetune")]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.yaml").write_text(job, encoding="utf-8")
        with pytest.raises(SystemExit) as ended:
            cli.main(["train", f"{folder}/job.yaml", f"output={folder}/runs", *short, *overrides])
        assert not ended.value.code
        (result,) = Path(folder).rglob("result.json")
        return json.loads(result.read_text(encoding="utf-8"))
