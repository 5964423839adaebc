"""The commands train, init and schema as a person types them, with everything a person gets wrong."""

import errno
import importlib
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

import attittud_lab.models
import attittud_lab.strategies.base
from attittud_lab.cli import main
from attittud_lab.config.load import load
from attittud_lab.models.network import load_weights
from attittud_lab.output.progress import Bars, EvaluationLines, shares

JOB = """
data:
  primary: {path: digits, train: 60, validation: 60, test: 200}
  auxiliary: {more: {path: digits, examples: 300}}
model: {name: mlp, width: 8}
training:
  guided: {steps: 6, evaluations: 1, primary_batch: 16, batch_size: 16}
  finetune: {steps: 4, evaluations: 1, primary_batch: 16}
strategy: {rank: 3}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def test_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "job.yaml", "strategy=flip", "seed=2") == 0
    out, err = capsys.readouterr()
    assert "test       loss" in out and "flip, seed 2: 10 steps" in out
    # This is no terminal: a line for each evaluation.
    lines = [re.sub(r"\d+\.\d+", "N", line) for line in err.splitlines()]
    assert lines == [
        f"{phase} steps, 0:00:00 left, validation accuracy N, loss N" for phase in ("guided 6/6", "finetune 4/4")
    ]
    assert call("train", "job.yaml", "strategy=flip", "seed=3", "--quiet") == 0
    assert capsys.readouterr().err == ""
    folder = Path("runs/job/flip/seed-2")
    assert json.loads((folder / "result.json").read_text())["strategy"] == "flip" and str(folder) in out
    assert call("train", "job.yaml", "strategy=flip", "seed=2") == 0
    assert "was finished before" in capsys.readouterr().out
    # The echo of the configuration can be trained again.
    assert call("train", str(folder / "config.yaml"), "output=again") == 0


def test_a_strategy_and_a_model_from_outside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script that CONTRIBUTING.md shows, through the command."""
    for registry in (attittud_lab.strategies.base, attittud_lab.models):  # afterwards nobody shall find them
        monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    script = text.partition("# mine.py")[2].partition("```")[0]
    exec(compile(f"#{script}", "mine.py", "exec"), {"__name__": "mine"})
    assert call("train", "job.yaml", "strategy=half", "model.name=linear") == 0
    assert "half, seed 0: 10 steps" in capsys.readouterr().out
    shapes = {
        name: tensor.shape for name, tensor in load_weights(Path("runs/job/half/seed-0/weights.safetensors")).items()
    }
    assert shapes["body.layer.1.weight"] == (8, 64) and shapes["heads.primary.weight"] == (10, 8)
    assert attittud_lab.strategies.names()["half"] == "half of the auxiliary gradient"
    with pytest.raises(ValueError, match="there is a strategy 'half' already"):
        attittud_lab.strategies.register("half", "", attittud_lab.strategies.Strategy)


def test_names_are_listed_without_torch() -> None:
    code = "import sys, attittud_lab.strategies as s, attittud_lab.models as m; s.names(), m.names(); "
    subprocess.run([sys.executable, "-c", f"{code} sys.exit('torch' in sys.modules)"], check=True)


def test_joint_training_has_one_phase() -> None:
    assert call("train", "job.yaml", "training.mode=joint") == 0
    result = json.loads(Path("runs/job/auto/seed-0/result.json").read_text())
    assert [phase["name"] for phase in result["phases"]] == ["guided"]


MISTAKES = {
    ("nowhere.yaml",): "nowhere.yaml: cannot read the configuration: No such file",
    ("job.yaml", "traning.mode=joint"): "did you mean 'training'?",
    ("job.yaml", "strategy=drop_harmfull"): (
        "command line (strategy=drop_harmfull): strategy.name: unknown strategy 'drop_harmfull'. Did you mean 'drop_harmful'?"
    ),
    # Where the name stands, not the last setting beside it.
    ("job.yaml", "strategy.name=auot", "strategy.rank=4"): "command line (strategy.name=auot): strategy.name: unknown",
    ("job.yaml", "compare.strategies=[flip, {name: flop}]"): (
        "command line (compare.strategies=[flip, {name: flop}]): compare.strategies[1].name: unknown strategy 'flop'. "
        "Did you mean 'flip'?"
    ),
    ("job.yaml", "strategy=custom"): "needs its three weights",
    ("job.yaml", "strategy.engine=hoks"): "Did you mean 'hooks'?",
    ("job.yaml", "strategy.engine=implicit"): "pass basis='exact'",
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
    ("job.yaml", "data.primary.classes=['3']"): "one class only",
    (
        "job.yaml",
        "training.guided.primary_batch=64",
    ): "asks for 64 primary examples at once, but the primary training set has only 60",
    ("job.yaml", "strategy.basis_batch=61"): "strategy.basis_batch asks for 61",
    ("job.yaml", "data.auxiliary=null"): "data.auxiliary: expected a mapping",
    ("job.yaml", "data.auxiliary={}"): "needs auxiliary data, but data.auxiliary is empty",
    ("job.yaml", "data.primary.path="): "command line (data.primary.path=): data.primary.path: expected a path or name",
    ("job.yaml", "output="): "output: expected a path or name, got an empty text",
    ("job.yaml", f"data.primary.path={os.devnull}"): "is neither a file nor a folder",
    (
        "job.yaml",
        "data.primary.classes=[]",
    ): "data.primary.classes: the list is empty; name the classes to keep, or null",
    ("job.yaml", "data.primary.label=verdict"): "digits: has no columns, so label: verdict means nothing",
    ("job.yaml", "training.guided.epochs=0"): "training.guided.epochs: must be above 0",
    ("job.yaml", "strategy.rank=1000000"): "strategy.rank: must be at most 4096",
    ("job.yaml", "training.metric=auc"): "auc is for several labels at once",
    ("job.yaml", "device=cuda:77"): "device: 'cuda:77' cannot be used here",
    ("job.yaml", "device=meta"): "device: 'meta' cannot be used here",
    ("job.yaml", "training.guided.lr=1e30", "training.guided.clip=null", "log_every=1"): "training diverged",
    ("job.yaml", "output=job.yaml"): "choose another folder by output=FOLDER",
    ("job.yaml", "--log", "paper"): "choose one of tensorboard, wandb, trackio",
    ("job.yaml", "--lgo", "x"): "--lgo",
    (): "CONFIG",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_mistakes(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
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
        ),
        (
            ["strategy.name=flip", "training.guided.accumulate=16"],
            "training.guided.primary_batch",
            "or lower training.guided.accumulate",
        ),
        (["strategy.name=auto", "data.primary.validation=1"], "data.primary.validation", "raise it,"),
        (
            ["strategy.name=primary_only", "training.finetune.primary_batch=1"],
            "training.finetune.primary_batch",
            "raise it,",
        ),
    ],
    ids=["auxiliary", "micro-batches", "judge", "primary"],
)
def test_one_example_at_a_time_and_batch_norm(
    changes: list[str], culprit: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("train", "job.yaml", "model={name: resnet-18}", *changes) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert f"attittud: {culprit}: one example is too few for BatchNorm" in err and cure in err


def test_a_mistake_does_not_occupy_the_folder() -> None:
    assert call("train", "job.yaml", "training.guided.primary_batch=64") == 2
    assert call("train", "job.yaml") == 0


def test_a_run_that_cannot_be_continued_does_not_occupy_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """It ends after run.json was written, and before its first checkpoint."""
    wild = ["training.guided.lr=1e30", "training.guided.clip=null", "log_every=1"]
    assert call("train", "job.yaml", *wild) == 2
    folder = Path("runs/job/auto/seed-0")
    assert (folder / "metrics.jsonl").stat().st_size and "training diverged" in capsys.readouterr().err
    assert call("train", "job.yaml", "training.guided.lr=1e-3") == 0
    assert load(folder / "config.yaml").training.guided.lr == 1e-3
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4  # nothing of the first run among them
    assert call("train", "job.yaml") == 0 and "was finished before" in capsys.readouterr().out
    assert call("train", "job.yaml", "seed=0", "training.guided.lr=1e-4") == 2  # now there is something to lose
    assert "another configuration (training.guided.lr: 0.001 there, 0.0001 here)" in capsys.readouterr().err


def test_tensorboard() -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = Path("runs/job/auto/seed-0/tensorboard")
    assert call("train", "job.yaml", "--log", "tensorboard", "training.guided.primary_batch=64") == 2
    assert not folder.exists()  # what is refused does not appear there
    assert call("train", "job.yaml", "--log", "tensorboard") == 0
    events = EventAccumulator(str(folder))
    events.Reload()
    assert all(name.startswith("attittud/") for name in events.Tags()["scalars"])
    lines = [json.loads(line) for line in (folder.parent / "metrics.jsonl").read_text().splitlines()]
    losses = [pytest.approx(line["loss/primary"]) for line in lines if "loss/primary" in line]
    logged = events.Scalars("attittud/loss/primary")
    assert [(event.step, event.value) for event in logged] == list(zip((6, 10), losses, strict=True))
    before = list(folder.iterdir())
    assert call("train", "job.yaml", "--log", "tensorboard") == 0  # was finished before
    assert list(folder.iterdir()) == before


def test_tensorboard_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its events are written by a thread, whose death is nobody's business but ours."""
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.compat.tensorflow_stub.io import gfile

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gfile.LocalFileSystem, "append", full)
    before = threading.excepthook
    assert call("train", "job.yaml", "--log", "tensorboard") == 2
    err = capsys.readouterr().err
    assert err.startswith("attittud: runs/job/auto/seed-0/tensorboard: the disk is full") and err.count("\n") == 1
    assert threading.excepthook is before


def test_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wandb.py").write_text(
        "import json\nlines = []\ndef init(**k): lines.append(['init', k['project'], k['name']])\n"
        "def log(v, step): lines.append([step, sorted(v)])\n"
        "def finish():\n    with open('wandb.json', 'w') as f: json.dump(lines, f)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("wandb", "trackio"):  # afterwards nobody shall find these two: TRL looks for them
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    assert call("train", "job.yaml", "--log", "wandb") == 0
    first, *lines = json.loads(Path("wandb.json").read_text())
    assert first == ["init", "attittud", "auto-seed-0"]
    assert [step for step, _ in lines] == [6, 6, 10, 10]  # counted over both phases
    assert {"attittud/helpful", "attittud/loss/primary", "attittud/lr"} <= set(lines[0][1])
    assert all(name.startswith("attittud/") for _, names in lines for name in names)
    (tmp_path / "trackio.py").write_text("def init(**_): raise RuntimeError('nobody is logged in')\n")
    assert call("train", "job.yaml", "--log", "trackio", "seed=1") == 2
    assert "nobody is logged in" in capsys.readouterr().err
    (tmp_path / "wandb.py").write_text(
        "def init(**_): ...\ndef log(v, step): raise ConnectionError('gone')\ndef finish(): ...\n"
    )
    del sys.modules["wandb"]
    importlib.invalidate_caches()
    assert call("train", "job.yaml", "--log", "wandb", "seed=2") == 2
    assert "does not take figures any more (gone); the same command goes on" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert call("train", "job.yaml", "--log", "trackio", "seed=1") == 2


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attittud", "train", "job.yaml", "--log", "trackio"]
    subprocess.run(command, env=os.environ | {"TRACKIO_DIR": str(tmp_path / "trackio")}, check=True, timeout=120)
    with closing(sqlite3.connect(tmp_path / "trackio/attittud.db")) as database:
        rows = database.execute("select step, metrics from metrics where run_name = 'auto-seed-0'").fetchall()
    assert [step for step, _ in rows] == [6, 6, 10, 10]
    assert "attittud/loss/primary" in json.loads(rows[0][1])


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")], ids=str
)
def test_ctrl_c_and_sigterm(number: signal.Signals, code: int, word: str) -> None:
    command = [sys.executable, "-m", "attittud", "train", "job.yaml", "training.guided.steps=100000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        metrics = Path("runs/job/auto/seed-0/metrics.jsonl")
        for _ in range(600):
            if metrics.exists() and metrics.stat().st_size:
                break
            time.sleep(0.1)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    folder = metrics.parent
    kept = (folder / "checkpoint.safetensors").exists()
    words = f"the same command continues from the last checkpoint in {folder}" if kept else "there is no checkpoint yet"
    assert process.returncode == code and err.startswith(f"attittud: {word}; {words}") and err.count("\n") == 1
    assert not list(Path().rglob("*.part")) and not list(Path().rglob("result.json"))


@pytest.mark.parametrize(
    ("files", "options", "words"),
    [
        ([], [], "there is no checkpoint yet, the same command starts from the beginning"),
        (["checkpoint.safetensors"], [], "the same command continues from the last checkpoint in runs/job/auto/seed-0"),
        (
            ["checkpoint.safetensors"],
            ["--fresh"],
            "the same command without --fresh continues from the last checkpoint",
        ),
        (["result.json"], [], "the run was at its end, the same command shows it"),
    ],
)
def test_what_is_kept_of_an_interrupted_run(
    files: list[str],
    options: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_: object, run_dir: Path, **__: object) -> None:
        run_dir.mkdir(parents=True)
        for name in files:
            (run_dir / name).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("attittud_lab.training.train.run", stop)
    assert call("train", "job.yaml", *options) == 130
    assert capsys.readouterr().err.startswith(f"attittud: interrupted; {words}")


def test_init_writes_what_train_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init", "image", "--primary", "digits", "--auxiliary", "digits", "-o", "mine.yaml") == 0
    text = Path("mine.yaml").read_text()
    assert "# Primary: 1797 images, 8 pixels, 10 classes." in text and text in capsys.readouterr().out
    chosen = [line for line in text.splitlines() if any(c.isdigit() for c in line.partition("#")[0])]
    assert len(chosen) > 8 and all("#" in line for line in chosen)
    assert "    train: 0.2  # the rest of it is auxiliary data" in text  # both are the same digits
    quick = ["training.guided.steps=3", "training.finetune.steps=2"]
    assert call("train", "mine.yaml", *quick) == 0
    assert call("init", "image", "--primary", "digits", "-o", "mine.yaml") == 2
    assert "--force" in capsys.readouterr().err


def picture_folders(**classes: list[int]) -> None:
    """Folders with so many images of class a, b, ..."""
    for folder, counts in classes.items():
        for name, count in zip("abcdef", counts, strict=False):
            for number in range(count):
                path = Path(folder) / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (len(folder), ord(name), number)).save(path)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([8], "one class only ('a')"),
        ([1, 1], "no example is left for train"),
    ],
)
def test_init_refuses_what_train_would_refuse(
    counts: list[int], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    picture_folders(mine=counts, others=[9, 9])
    assert call("init", "image", "--primary", "mine", "--auxiliary", "others") == 2
    said = capsys.readouterr().err
    assert message in said and not Path("attittud.yaml").exists()
    # Word by word the same.
    Path("job.yaml").write_text(JOB.replace("{path: digits, train: 60, validation: 60, test: 200}", "mine"))
    assert call("train", "job.yaml") == 2
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("part", ["validation", "test"])
@pytest.mark.parametrize(
    ("value", "message"), [("0", "is 0, but that part"), ("null", "null means the source's own split")]
)
def test_every_part_needs_examples(part: str, value: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(JOB)
    assert call("train", "job.yaml", f"data.primary.{part}={value}") == 2
    said = capsys.readouterr().err
    assert f"data.primary.{part}: {message}" in said and "such as 0.2" in said


@pytest.mark.parametrize(
    ("counts", "auxiliary", "strategy", "batch"),
    [([3, 3], True, "auto", 4), ([2, 2, 2], True, "auto", 4), ([9, 9], False, "primary_only", 10)],
)
def test_what_init_writes_for_few_images_can_be_trained(
    counts: list[int], auxiliary: bool, strategy: str, batch: int
) -> None:
    picture_folders(mine=counts, others=[9, 9])
    assert call("init", "image", "--primary", "mine", *(["--auxiliary", "others"] if auxiliary else [])) == 0
    found = load("attittud.yaml")
    assert (found.strategy.name, found.training.guided.primary_batch) == (strategy, batch)
    assert call("train", "attittud.yaml", "training.guided.steps=2", "training.finetune.steps=2") == 0


def test_init_text(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text("text,label\n" + "".join(f"word{n} here,{'no' if n % 2 else 'yes'}\n" for n in range(40)))
    Path("b c.jsonl").write_text("".join(json.dumps({"text": f"more {n}"}) + "\n" for n in range(30)))
    assert call("init", "text", "--primary", "a.csv", "--auxiliary", "b c.jsonl") == 0
    config = load("attittud.yaml")
    assert config.data.auxiliary["b_c"].objective == "masked_lm" and config.training.guided.primary_batch == 24
    assert call("train", "attittud.yaml", "training.guided.steps=2", "training.finetune.steps=2", "model.width=8") == 0
    assert call("init", "image", "--primary", "a.csv", "--force") == 2
    assert "use `attittud init text`" in capsys.readouterr().err
    assert call("init", "sound", "--primary", "a.csv", "--force") == 2


def test_init_is_told_the_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"word{n} here,{'no' if n % 2 else 'yes'}\n" for n in range(40))
    Path("a.csv").write_text("body,verdict\n" + rows)
    Path("b.csv").write_text("text,label\n" + rows.replace("word", "other"))
    assert call("init", "text", "--primary", "a.csv") == 2
    assert "name it by --input. Columns: body, verdict" in capsys.readouterr().err
    assert call("init", "text", "--primary", "a.csv", "--input", "body") == 2
    assert "name it by --label" in capsys.readouterr().err
    columns = ["--input", "body", "--label", "verdict"]
    assert call("init", "text", "--primary", "a.csv", "--auxiliary", "b.csv", *columns) == 0
    assert "#   no (20), yes (20)" in capsys.readouterr().out
    data = load("attittud.yaml").data
    assert (data.primary.input, data.primary.label) == ("body", "verdict")
    assert (data.auxiliary["b"].input, data.auxiliary["b"].label) == (None, None)  # it has the usual ones
    quick = ["training.guided.steps=2", "training.finetune.steps=2", "model.width=8"]
    assert call("train", "attittud.yaml", *quick) == 0
    assert call("init", "text", "--primary", "a.csv", "--input", "bdy", "--force") == 2
    assert "there is no column 'bdy'" in capsys.readouterr().err


def test_init_on_another_level_of_folders(capsys: pytest.CaptureFixture[str]) -> None:
    picture_folders(**{"all/mine": [9, 7], "all/theirs": [8, 8], "one/level": [4, 4]})
    assert call("init", "image", "--primary", "all/mine") == 0
    out, err = capsys.readouterr()
    assert "# Primary: 16 images, 8 pixels, 2 classes.\n#   a (9), b (7)\n" in out and err == ""
    assert call("init", "image", "--primary", "all", "--force") == 0
    out, err = capsys.readouterr()
    assert (
        "#   mine (16), theirs (16)\n# Warning: 2 of these classes have folders in them, such as mine with a, b" in out
    )
    assert err.startswith("attittud: Warning: 2 of these classes have folders in them") and err.count("\n") == 1
    assert call("init", "image", "--primary", "one", "--force") == 2
    assert "one class only, 'level', whose folder has folders in it (a, b); did you mean one/level?" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "cure"),
    [
        (("schema", "-o", "no/such/folder.json"), "choose another file by --output"),
        (("init", "image", "--primary", "digits", "-o", "job.yaml/x.yaml"), "choose another file by --output"),
    ],
    ids=["schema", "init"],
)
def test_what_cannot_be_written_names_the_option(
    arguments: tuple[str, ...], cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    assert cure in capsys.readouterr().err


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("schema") == 0
    shown = capsys.readouterr().out
    assert call("schema", "-o", "s.json") == 0
    assert json.loads(shown) == json.loads(Path("s.json").read_text())


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "init", "schema"):
        assert call(command, "--help") == 0
    out = capsys.readouterr().out
    assert "drop_harmful" in out and "bloop" in out and "continues" in out


def test_bars_show_losses_and_shares(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    values = {"loss/primary": 1.25, "attittud/helpful": 3.0, "attittud/harmful": 4.0, "attittud/neutral": 0.0}
    with Bars() as bars:
        bars.phase("guided", 10, 2)
        bars.evaluated({"accuracy": 0.5})
        bars.advance(3, values)
    err = " ".join(capsys.readouterr().err.split())
    assert "5/10" in err and "primary 1.250" in err and "harmful 64%" in err and "accuracy 0.500" in err
    assert shares({"loss/primary": 1.0}) is None


def test_lines_say_how_far_and_how_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluations come between logged steps; a resumed phase is as fast as in this process."""
    now = itertools.count(100, 20)
    monkeypatch.setattr("attittud_lab.output.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    lines = EvaluationLines()
    lines.phase("guided", 1000, 500)
    lines.advance(20, {})
    lines.evaluated({"accuracy": 0.5, "loss": 1.25})  # 20 s for 20 steps
    lines.advance(180, {})
    lines.evaluated({"accuracy": 0.75, "loss": 1.0})
    assert capsys.readouterr().err.splitlines() == [
        "guided 520/1000 steps, 0:08:00 left, validation accuracy 0.5000, loss 1.2500",
        "guided 700/1000 steps, 0:01:00 left, validation accuracy 0.7500, loss 1.0000",
    ]


def test_an_evaluation_between_logged_steps_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "job.yaml", "training.guided.evaluations=3", "training.mode=joint", "log_every=100") == 0
    assert [line.split(" steps")[0] for line in capsys.readouterr().err.splitlines()] == [
        f"guided {step}/6" for step in (2, 4, 6)
    ]


@pytest.mark.parametrize("columns", [80, 100])
def test_bars_fit_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    values = {"loss/primary": 1.25e9, **{f"loss/auxiliary/source_{n}": 2.5 for n in range(9)}}
    with Bars() as bars:
        for name in ("guided", "finetune"):
            bars.phase(name, 10**7, 10**6)
            bars.evaluated({"accuracy": 0.5, "loss": 12345.678})
            bars.advance(3, values | {"attittud/helpful": 1.0, "attittud/harmful": 2.0, "attittud/neutral": 4.0})
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", capsys.readouterr().err)]
    assert max(map(len, lines)) <= columns and any("1000003/10000000" in line for line in lines)


def test_the_three_shares_fit_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    values = {"loss/primary": 1.25, "loss/auxiliary/more": 2.5, "loss/auxiliary/less": 2.5}
    with Bars() as bars:
        bars.phase("finetune", 300, 2)
        bars.advance(3, values | {"attittud/helpful": 1.0, "attittud/harmful": 2.0, "attittud/neutral": 4.0})
    err = capsys.readouterr().err
    assert "finetune" in err and "primary 1.250 helpful 5% harmful 19% neutral 76%" in err
