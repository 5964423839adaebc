"""Every command with the oldest typer that pyproject.toml allows.

Newer typer carries its own copy of Click; what works with one need not work with the other.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


JOB = """
data:
  primary: {path: digits, train: 60, validation: 60, test: 100}
  auxiliary: {more: {path: digits, examples: 200}}
model: {name: mlp, width: 8}
training:
  guided: {steps: 20, evaluations: 1, primary_batch: 16, batch_size: 16}
  finetune: {steps: 4, evaluations: 1, primary_batch: 16}
strategy: {rank: 3, refresh_every: 5}
compare: {seeds: 2, tuning_seeds: 1, strategies: [], weights: [0.3, 1]}
"""


COMMANDS = [
    ["--help"],
    ["--version"],
    ["train", "--help"],
    ["compare", "--help"],
    ["train", "job.yaml", "strategy=flip", "seed=1"],
    ["compare", "job.yaml"],
    ["report", "runs/job/flip/seed-1"],
    ["demo", "--seeds", "2", "--steps", "2", "--workers", "1"],
    ["init", "image", "--primary", "digits", "--auxiliary", "digits", "-o", "new.yaml"],
    ["schema", "-o", "schema.json"],
]


MISTAKES = [
    ["tran"],
    ["train"],
    ["train", "no.yaml"],
    ["demo", "--seeds", "0"],
    ["demo", "--seeds", "many"],
    ["report"],
]


# One process for all of them: most of the time goes into imports.
SCRIPT = """
import contextlib, io, json, sys

import click, torch, typer
from attittud_lab import demo
from attittud_lab.cli import main
from attittud_lab.placing.job import in_this_process

torch.set_num_threads(1)
# Neither more rows nor other processes change anything for typer.
demo.ROWS = {row: demo.ROWS[row] for row in ("primary_only", "multitask")}
demo.in_processes = lambda _: in_this_process()
found = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as stopped:
            code = stopped.code or 0
        except Exception as error:
            code = repr(error)
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps([typer.__version__, found]))
"""


@pytest.fixture(scope="module")
def old_typer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The oldest allowed version and the Click of its time, in a separate folder."""
    oldest = re.search(r'"typer>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert oldest is not None
    folder = tmp_path_factory.mktemp("typer")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    packages = [f"typer=={oldest[1]}.*", "click<8.2"]  # Click 8.2 changed what this typer overrides
    done = subprocess.run([*install, "--target", str(folder), *packages], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"typer {oldest[1]} cannot be installed here: {' '.join(done.stderr.split())[-200:]}")
    return folder


def test_every_command_works_with_the_oldest_typer(old_typer: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    path = os.pathsep.join([str(old_typer), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, json.dumps([*COMMANDS, *MISTAKES])],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    version, found = json.loads(done.stdout)
    assert version.startswith("0.12.")
    for arguments, (code, out, err) in zip(COMMANDS, found, strict=False):
        assert code == 0 and (out or arguments[0] == "schema"), (arguments, code, err)
    for arguments, (code, _, err) in zip(MISTAKES, found[len(COMMANDS) :], strict=True):
        assert code == 2 and err.startswith("attittud: ") and err.count("\n") == 1, (arguments, code, err)
    assert "drop_harmful" in found[2][1] and "\nDecision" in found[5][1]
    assert (tmp_path / "runs/job/compare/report.html").is_file() and (tmp_path / "runs/demo/report.html").is_file()
