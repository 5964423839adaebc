"""TensorBoard and other trackers, also on a full disk."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from tests.helpers.commands import JOB, call


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def test_metrics_are_logged_to_tensorboard() -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = Path("runs/job/auto/seed-0/tensorboard")
    assert (
        call("train", "job.yaml", "--log", "tensorboard", "training.guided.primary_batch=64") == 2
    )
    assert not folder.exists()  # what is refused does not appear there
    assert call("train", "job.yaml", "--log", "tensorboard") == 0
    events = EventAccumulator(str(folder))
    events.Reload()
    assert all(name.startswith("attittud/") for name in events.Tags()["scalars"])
    lines = [
        json.loads(line) for line in (folder.parent / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [pytest.approx(line["loss/primary"]) for line in lines if "loss/primary" in line]
    logged = events.Scalars("attittud/loss/primary")
    assert [(event.step, event.value) for event in logged] == list(
        zip((6, 10), losses, strict=True)
    )
    before = list(folder.iterdir())
    assert call("train", "job.yaml", "--log", "tensorboard") == 0  # was finished before
    assert list(folder.iterdir()) == before


def test_metrics_are_logged_to_wandb_and_trackio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wandb.py").write_text(
        "import json\nlines = []\ndef init(**k): lines.append(['init', k['project'], k['name']])\n"
        "def log(v, step): lines.append([step, sorted(v)])\n"
        "def finish():\n    with open('wandb.json', 'w') as f: json.dump(lines, f)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("wandb", "trackio"):  # removed afterwards, since TRL looks for these two
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    assert call("train", "job.yaml", "--log", "wandb") == 0
    first, *lines = json.loads(Path("wandb.json").read_text())
    assert first == ["init", "attittud", "auto-seed-0"]
    assert [step for step, _ in lines] == [6, 6, 10, 10]  # counted over both phases
    assert {"attittud/helpful", "attittud/loss/primary", "attittud/lr"} <= set(lines[0][1])
    assert all(name.startswith("attittud/") for _, names in lines for name in names)
    (tmp_path / "trackio.py").write_text(
        "def init(**_): raise RuntimeError('nobody is logged in')\n"
    )
    assert call("train", "job.yaml", "--log", "trackio", "seed=1") == 2
    assert "nobody is logged in" in capsys.readouterr().err
    (tmp_path / "wandb.py").write_text(
        "def init(**_): ...\ndef log(v, step): raise ConnectionError('gone')\ndef finish(): ...\n"
    )
    del sys.modules["wandb"]
    importlib.invalidate_caches()
    assert call("train", "job.yaml", "--log", "wandb", "seed=2") == 2
    assert "--log wandb" in (err := capsys.readouterr().err) and "gone" in err
    monkeypatch.setitem(sys.modules, "trackio", None)
    assert call("train", "job.yaml", "--log", "trackio", "seed=1") == 2
