"""`attittud train` as a person types it, with everything a person gets wrong."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from attittud_lab.portfolio import leaderboard
from tests.helpers.commands import call
from tests.helpers.processes import command


def test_train_writes_a_run_folder(capsys):
    assert call("train", "job.yaml", "strategy=flip", "seed=2") == 0
    out, err = capsys.readouterr()
    assert "flip, seed 2: 10 steps" in out
    assert "runs/job/flip/seed-2/report.html" in out
    assert "<!doctype html>" in Path("runs/job/flip/seed-2/report.html").read_text()
    # A report that cannot be written does not undo the run.
    Path("runs/job/flip/seed-2/metrics.jsonl").write_text("damaged\n")
    assert call("train", "job.yaml", "strategy=flip", "seed=2", "--quiet") == 0
    again = capsys.readouterr()
    assert "no report: " in again.err and again.out.splitlines()[-1] == "runs/job/flip/seed-2"
    # This is not a terminal: a line for each evaluation.
    lines = [re.sub(r"\d+\.\d+", "N", line) for line in err.splitlines()]
    assert lines == [
        f"{phase} steps, validation accuracy N, loss N" for phase in ("guided 6/6", "finetune 4/4")
    ]
    assert call("train", "job.yaml", "strategy=flip", "seed=3", "--quiet") == 0
    assert capsys.readouterr().err == ""
    folder = Path("runs/job/flip/seed-2")
    assert json.loads((folder / "result.json").read_text())["strategy"] == "flip"
    assert str(folder) in out
    assert call("train", "job.yaml", "strategy=flip", "seed=2") == 0
    assert "finished earlier" in capsys.readouterr().out
    # The echo of the configuration can be trained again.
    assert call("train", str(folder / "config.yaml"), "output=again") == 0


def test_joint_training_has_one_phase(capsys):
    assert call("train", "job.yaml", "training.mode=joint") == 0
    result = json.loads(Path("runs/job/auto/seed-0/result.json").read_text())
    assert [phase["name"] for phase in result["phases"]] == ["guided"]
    # In so few steps nothing earns a weight. A finished run still says so.
    assert call("train", "job.yaml", "training.mode=joint", "--quiet") == 0
    said = "Strategy auto ended with weight 0 for every auxiliary part"
    assert capsys.readouterr().out.count(said) == 2


MISTAKES = {
    (): "CONFIG",
    ("jop.yaml",): "jop.yaml",
    ("job.yaml", "strategy=drop_harmfull"): "'drop_harmful'",
    ("job.yaml", "compare.strategies=[flip, {name: flop}]"): "compare.strategies[1].name",
    ("job.yaml", "model=smal-cnn"): "smal-cnn",
    ("job.yaml", "data.primary.path=pictures"): "pictures",
    ("job.yaml", "data.primary.classes=['3']"): "only one class",
    ("job.yaml", "training.guided.primary_batch=64"): "64",
    ("job.yaml", "data.auxiliary={}"): "data.auxiliary",
    ("job.yaml", "training.metric=auc"): "auc",
    ("job.yaml", "device=cuda:77"): "cuda:77",
    ("job.yaml", "output=job.yaml"): "output=FOLDER",
    ("job.yaml", "--lgo", "x"): "--lgo",
    ("job.yaml", "--workers", "2"): "--workers",
    ("job.yaml", "--ray", "strategy=flip"): "--ray",
    ("job.yaml", "strategy=portfolio", "--log", "wandb"): "--log wandb",
    ("job.yaml", "data.primary.train=1.0"): "data.primary.train",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_are_explained(arguments, capsys):
    assert call("train", *arguments) == 2
    err = capsys.readouterr().err
    *_, message = err.splitlines()
    assert MISTAKES[arguments].lower() in message.lower() and err.count("attittud:") == 1, err
    assert not list(Path().rglob("result.json"))


def test_a_mistake_leaves_the_run_folder_free():
    assert call("train", "job.yaml", "training.guided.primary_batch=64") == 2
    assert call("train", "job.yaml") == 0


def test_damaged_files_of_a_finished_run_are_named(capsys):
    folder = Path("runs/job/auto/seed-0")
    assert call("train", "job.yaml", "--quiet") == 0
    model = (folder / "model.json").read_text()
    (folder / "model.json").write_text(json.dumps(json.loads(model) | {"classes": 3}))
    assert call("train", "job.yaml", "--quiet") == 2
    assert "model.json" in capsys.readouterr().err
    (folder / "model.json").write_text(model)
    (folder / "leaderboard.json").write_text(json.dumps({"version": leaderboard.VERSION}))
    assert call("train", "job.yaml", "--quiet") == 2
    assert str(folder) in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_and_sigterm_end_a_run_that_can_be_continued():
    process = command(Path.cwd(), "train", "job.yaml", "training.guided.steps=100000")
    metrics = Path("runs/job/auto/seed-0/metrics.jsonl")
    for _ in range(600):
        if metrics.exists() and metrics.stat().st_size:
            break
        time.sleep(0.1)
    os.kill(process.pid or 0, signal.SIGINT)
    process.join(60)
    process.kill()
    folder, err = metrics.parent, Path("err").read_text()
    kept = (folder / "checkpoint.safetensors").exists()
    words = str(folder) if kept else "no checkpoint"
    *_, message = err.splitlines()
    assert process.exitcode == 130 and err.count("attittud:") == 1
    assert message.startswith("attittud: interrupted; ") and words in message
    assert not list(Path().rglob("*.part")) and not list(Path().rglob("result.json"))
