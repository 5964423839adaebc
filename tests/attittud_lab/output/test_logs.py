"""TensorBoard and other trackers, also on a full disk."""

import json
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
