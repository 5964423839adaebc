"""`attittud train` as a person types it, with everything a person gets wrong."""

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
from tests.helpers.processes import command

SLOW_IMPORTS = "loading torch and other libraries\n"
"""The first line on a busy machine."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def test_train_writes_a_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "job.yaml", "strategy=flip", "seed=2") == 0
    out, err = capsys.readouterr()
    assert "test       loss" in out and "flip, seed 2: 10 steps" in out
    assert (
        "`attittud report runs/job/flip/seed-2`" in out
        and "`attittud predict runs/job/flip/seed-2 INPUTS`" in out
    )
    assert (
        "report: runs/job/flip/seed-2/report.html " in out
        and "next: `attittud compare job.yaml" in out
    )
    assert "<!doctype html>" in Path("runs/job/flip/seed-2/report.html").read_text()
    # A report that cannot be written does not undo the run.
    Path("runs/job/flip/seed-2/metrics.jsonl").write_text("damaged\n")
    assert call("train", "job.yaml", "strategy=flip", "seed=2", "--quiet") == 0
    again = capsys.readouterr()
    assert "no report: " in again.err and again.out.splitlines()[-1] == "runs/job/flip/seed-2"
    # This is not a terminal: a line for each evaluation.
    lines = [re.sub(r"\d+\.\d+", "N", line) for line in err.splitlines()]
    assert lines == [
        f"{phase} steps, 0:00:00 left, validation accuracy N, loss N"
        for phase in ("guided 6/6", "finetune 4/4")
    ]
    assert call("train", "job.yaml", "strategy=flip", "seed=3", "--quiet") == 0
    assert capsys.readouterr().err == ""
    folder = Path("runs/job/flip/seed-2")
    assert (
        json.loads((folder / "result.json").read_text())["strategy"] == "flip"
        and str(folder) in out
    )
    assert call("train", "job.yaml", "strategy=flip", "seed=2") == 0
    assert "finished earlier" in capsys.readouterr().out
    # The echo of the configuration can be trained again.
    assert call("train", str(folder / "config.yaml"), "output=again") == 0


def test_names_are_listed_without_torch() -> None:
    code = (
        "import sys, attittud_lab.strategies as s, attittud_lab.models as m; s.names(), m.names(); "
    )
    subprocess.run([sys.executable, "-c", f"{code} sys.exit('torch' in sys.modules)"], check=True)


def test_joint_training_has_one_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "job.yaml", "training.mode=joint") == 0
    result = json.loads(Path("runs/job/auto/seed-0/result.json").read_text())
    assert [phase["name"] for phase in result["phases"]] == ["guided"]
    # In so few steps nothing earns a weight. A finished run still says so.
    assert call("train", "job.yaml", "training.mode=joint", "--quiet") == 0
    said = "attittud: strategy auto ended with weight 0 for every auxiliary part"
    assert capsys.readouterr().err.count(said) == 2


MISTAKES = {
    (
        "nowhere.yaml",
    ): "nowhere.yaml: cannot read the configuration: No such file or directory; check the path",
    (
        "jop.yaml",
    ): "jop.yaml: cannot read the configuration: No such file or directory; did you mean 'job.yaml'?",
    ("JOB.YAML",): "; did you mean 'job.yaml'?",
    ("no/such/job.yaml",): "; check the path",
    ("job.yaml", "traning.mode=joint"): "did you mean 'training'?",
    ("job.yaml", "strategy=drop_harmfull"): (
        "command line (strategy=drop_harmfull): strategy.name: unknown strategy 'drop_harmfull'. Did you mean 'drop_harmful'?"
    ),
    # The line of the name, not of the last setting next to it.
    (
        "job.yaml",
        "strategy.name=auot",
        "strategy.rank=4",
    ): "command line (strategy.name=auot): strategy.name: unknown",
    ("job.yaml", "compare.strategies=[flip, {name: flop}]"): (
        "command line (compare.strategies=[flip, {name: flop}]): compare.strategies[1].name: unknown strategy 'flop'. "
        "Did you mean 'flip'?"
    ),
    ("job.yaml", "strategy=custom"): "needs its three weights",
    ("job.yaml", "strategy.engine=hoks"): "Did you mean 'hooks'?",
    ("job.yaml", "training.guided.primary_batch=1"): "a basis needs at least 2 primary examples",
    (
        "job.yaml",
        "model=smal-cnn",
    ): "command line (model=smal-cnn): model.name: unknown model 'smal-cnn'. Did you mean",
    (
        "job.yaml",
        "model.name=small_cnn",
        "model.width=4",
    ): "command line (model.name=small_cnn): model.name: unknown model",
    ("job.yaml", "data.primary.path=pictures"): "there is no such file or folder",
    ("job.yaml", "data.primary.classes=['3']"): "only one class",
    (
        "job.yaml",
        "training.guided.primary_batch=64",
    ): "asks for 64 primary examples at once, but the primary training set has only 60",
    ("job.yaml", "strategy.basis_batch=61"): "strategy.basis_batch asks for 61",
    ("job.yaml", "data.auxiliary=null"): "data.auxiliary: expected a mapping",
    ("job.yaml", "data.auxiliary={}"): "needs auxiliary data, but data.auxiliary is empty",
    (
        "job.yaml",
        "data.primary.path=",
    ): "command line (data.primary.path=): data.primary.path: expected a path or name",
    ("job.yaml", "output="): "output: expected a path or name, got an empty text",
    ("job.yaml", f"data.primary.path={os.devnull}"): "is neither a file nor a folder",
    (
        "job.yaml",
        "data.primary.classes=[]",
    ): "data.primary.classes: the list is empty; name the classes to keep, or null",
    (
        "job.yaml",
        "data.primary.label=verdict",
    ): "digits: has no columns, so label: verdict has no effect",
    ("job.yaml", "training.guided.epochs=0"): "training.guided.epochs: must be above 0",
    ("job.yaml", "strategy.rank=1000000"): "strategy.rank: must be at most 4096",
    ("job.yaml", "training.metric=auc"): "auc is for several labels at once",
    ("job.yaml", "device=cuda:77"): "device: 'cuda:77' cannot be used here",
    ("job.yaml", "device=meta"): "device: 'meta' cannot be used here",
    (
        "job.yaml",
        "training.guided.lr=1e30",
        "training.guided.clip=null",
        "log_every=1",
    ): "training diverged",
    ("job.yaml", "output=job.yaml"): "choose another folder with output=FOLDER",
    ("job.yaml", "--log", "paper"): "choose one of tensorboard, wandb, trackio",
    ("job.yaml", "--lgo", "x"): "--lgo",
    (): "CONFIG",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes_are_explained(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("train", *arguments) == 2
    err = capsys.readouterr().err
    assert MISTAKES[arguments].lower() in err.lower() and err.count("\n") == 1, err
    assert not list(Path().rglob("result.json"))


@pytest.mark.parametrize(
    ("changes", "culprit", "cure"),
    [
        (
            ["strategy.name=flip", "training.guided.batch_size=1"],
            "training.guided.batch_size (or data.auxiliary.more.batch_size)",
            "raise it,",
        )
    ],
    ids=["auxiliary"],
)
def test_batches_of_one_example_under_batch_norm_are_refused(
    changes: list[str], culprit: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("train", "job.yaml", "model={name: resnet-18}", *changes) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert (
        f"attittud: {culprit}: BatchNorm cannot compute batch statistics from one example" in err
        and cure in err
    )


def test_a_mistake_leaves_the_run_folder_free() -> None:
    assert call("train", "job.yaml", "training.guided.primary_batch=64") == 2
    assert call("train", "job.yaml") == 0


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted")],
    ids=str,
)
def test_ctrl_c_and_sigterm_end_a_run_that_can_be_continued(
    number: signal.Signals, code: int, word: str
) -> None:
    process = command(Path.cwd(), "train", "job.yaml", "training.guided.steps=100000")
    metrics = Path("runs/job/auto/seed-0/metrics.jsonl")
    for _ in range(600):
        if metrics.exists() and metrics.stat().st_size:
            break
        time.sleep(0.1)
    os.kill(process.pid or 0, number)
    process.join(60)
    process.kill()
    folder, err = metrics.parent, Path("err").read_text().removeprefix(SLOW_IMPORTS)
    kept = (folder / "checkpoint.safetensors").exists()
    words = (
        f"the same command continues from the last checkpoint in {folder}"
        if kept
        else "there is no checkpoint yet"
    )
    assert (
        process.exitcode == code
        and err.startswith(f"attittud: {word}; {words}")
        and err.count("\n") == 1
    )
    assert not list(Path().rglob("*.part")) and not list(Path().rglob("result.json"))
