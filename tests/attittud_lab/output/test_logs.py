"""Metrics in TensorBoard."""

from pathlib import Path

import pytest

from tests.helpers.commands import JOB, call
from tests.helpers.runs import metrics_of


def test_metrics_are_logged_to_tensorboard(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    folder = Path("runs/job/auto/seed-0/tensorboard")
    command = ["train", "job.yaml", "--log", "tensorboard"]
    assert call(*command, "training.guided.primary_batch=64") == 2
    assert not folder.exists()  # what is refused does not appear there
    assert call(*command) == 0
    events = EventAccumulator(str(folder))
    events.Reload()
    assert all(name.startswith("attittud/") for name in events.Tags()["scalars"])
    lines = [line for line in metrics_of(folder.parent) if "loss/primary" in line]
    losses = [pytest.approx(line["loss/primary"]) for line in lines]
    logged = events.Scalars("attittud/loss/primary")
    assert [event.step for event in logged] == [6, 10]
    assert [event.value for event in logged] == losses
    before = list(folder.iterdir())
    assert call(*command) == 0  # was finished before
    assert list(folder.iterdir()) == before
