"""`attittud train` with a portfolio, as a person types it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.commands import JOB, call
from tests.helpers.portfolios import outcome
from tests.helpers.predictions import of_digits

QUICK = ["strategy=portfolio", "portfolio.looks=4", "portfolio.candidates=[multitask]", "training.guided.steps=8"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def test_a_budget_that_is_refused_leaves_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """Else the corrected command would find a run with another configuration there."""
    assert call("train", "job.yaml", *QUICK, "portfolio.budget=0 runs") == 2
    assert "neither a time nor a number of runs above 0" in capsys.readouterr().err
    assert not Path("runs/job/portfolio").exists()


def test_train_predict_and_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "job.yaml", *QUICK) == 0
    out, err = capsys.readouterr()
    lines = [re.sub(r"[\d.]+ (s|min).*", "N s", line) for line in err.splitlines()]
    assert lines[0].startswith("2 candidate strategies on 3 folds of the labels take as long as about ")
    assert lines[0].endswith(" full runs: N s")
    # Each rung counts its own trials: 2 candidates on 3 folds, as long as both go on.
    pattern = r" s  rung (\d) of 3, trial (\d+) of (\d+)(?:, about .* left in this rung)?: .*, fold \d\n"
    trials = [tuple(map(int, found)) for found in re.findall(pattern, err)]
    counts = {rung: many for rung, _, many in trials}
    assert trials == [(rung, n + 1, many) for rung, many in counts.items() for n in range(many)] and counts[1] == 6
    assert len(re.findall(r" s  final training, trial 1 of 1: .*, all labels\n", err)) == 1
    said = [line[:11] for line in lines if not line.startswith(" ")][1:]
    assert said == ["candidates ", "rung 1 of 3", "chance that", "rung 2 of 3", "rung 3 of 3"]
    said = out.splitlines()
    assert said[0].startswith("out-of-fold loss") and said[1].startswith("test       loss")
    # After eight steps the model is no better than a guess, which is said after the decision.
    assert "full runs, and at most" in out and " The model is " in said[-6]
    assert said[-5].startswith("The model is not shown to be better than guessing: ") and "model=timm:NAME" in said[-5]
    # The chance is told once, and the last score at a rung is the one that is shown at the end.
    assert "chance that" not in out
    (last,) = re.findall(r"rung 3 of 3 is over, after 100% of the steps; .*, out-of-fold accuracy ([\d.]+)\)\n", err)
    assert f"  accuracy {last}  " in said[0]
    folder = Path(said[-1])
    assert folder == Path("runs/job/portfolio/seed-0") and said[-4].startswith(f"report: {folder}/report.html ")
    assert said[-3] == f"next: `attittud predict {folder} INPUTS` predicts the label of new examples"
    assert said[-2].startswith("next: `attittud compare job.yaml ")
    assert "primary_only" in (folder / "report.html").read_text()
    assert call("train", "job.yaml", *QUICK, "--quiet") == 0
    out, err = capsys.readouterr()
    assert "finished earlier" in out and err == ""
    images, labels = of_digits(folder, Path())
    assert call("predict", str(folder), str(images), "--output", "out.jsonl") == 0
    said = [json.loads(line)["label"] for line in Path("out.jsonl").read_text().splitlines()]
    accuracy = json.loads((folder / "result.json").read_text())["test"]["accuracy"]
    assert sum(a == b for a, b in zip(said, labels, strict=True)) / len(labels) == pytest.approx(accuracy)
    assert call("report", str(folder)) == 0 and (folder / "report.html").exists()


def test_a_portfolio_trains_without_a_test_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "job.yaml", *QUICK, "data.primary.test=0", "--quiet") == 0
    out, _ = capsys.readouterr()
    assert "these figures chose the model; there is no test set" in out and "\ntest " not in out
    assert "attittud compare" not in out  # it measures by a test set
    assert call("compare", "job.yaml", "data.primary.test=0") == 2
    err = capsys.readouterr().err
    assert "data.primary.test: is 0" in err and "runs of" not in err  # no runs are announced
    assert call("report", "runs/job/portfolio/seed-0") == 0
    assert call("train", "job.yaml", "data.primary.test=0") == 2
    assert "data.primary.test: is 0, but test examples give the final score" in capsys.readouterr().err


def test_two_workers_give_the_same_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "job.yaml", *QUICK, "output=one") == 0
    assert call("train", "job.yaml", *QUICK, "output=two", "--workers", "2") == 0
    one, two = (Path(name, "job/portfolio/seed-0") for name in ("one", "two"))
    assert outcome(one) == outcome(two)
    capsys.readouterr()
    assert call("train", "job.yaml", "strategy=multitask", "--workers", "2") == 2
    assert "--workers 2: strategy multitask trains a single run; leave --workers 2 out" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_portfolio_refuses_to_log_to_tensorboard(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "job.yaml", *QUICK, "--log", "tensorboard") == 2
    assert "--log tensorboard: a portfolio has many short runs" in capsys.readouterr().err


def test_compare_refuses_the_portfolio_or_leaves_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", "job.yaml", "compare.strategies=[portfolio]") == 2
    assert "compare.strategies: portfolio cannot be compared here" in capsys.readouterr().err
    few = ["compare.strategies=[]", "compare.seeds=2", "compare.weights=[0.5, 1]", "compare.tuning_seeds=1"]
    assert call("compare", "job.yaml", "strategy=portfolio", *few, "compare.equal=steps") == 0
    out, err = capsys.readouterr()
    assert "strategy: portfolio does not take part" in err and "| multitask" in out and "| portfolio" not in out


@pytest.mark.slow
def test_a_killed_portfolio_continues(capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL at two moments, then the same command to the end; portfolio/test_run.py does it for both kinds of models."""
    settings = [*QUICK, "portfolio.final=ensemble", "training.guided.steps=60", "checkpoint_every=5"]
    assert call("train", "job.yaml", *settings, "output=whole", "--quiet") == 0
    command = [sys.executable, "-m", "attittud", "train", "job.yaml", *settings, "--quiet"]
    folder = Path("runs/job/portfolio/seed-0")
    for moment in ("plan.json", "trials/multitask/fold-2/checkpoint.safetensors"):
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
        while not (folder / moment).exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert call("train", "job.yaml", *settings, "--quiet") == 0
    assert (folder / "result.json").exists() and capsys.readouterr().out
    whole = outcome(Path("whole/job/portfolio/seed-0"))
    found = outcome(folder)
    for one, other in zip(whole, found, strict=True):
        assert json.dumps(one, default=repr) == json.dumps(other, default=repr)
