"""Interrupted runs: killed at any moment, continued to the same result; damage is noticed."""

import json
import os
import random
import signal
import time
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest
import torch

from attittud_lab import files
from attittud_lab.cli import main
from attittud_lab.errors import InputError
from tests.helpers.interrupted_runs import JOB, outcome, train_to_end, unfinished
from tests.helpers.processes import ready_processes


def _written(folder: Path) -> int | None:
    """When the checkpoint was written; None without one."""
    try:
        return (folder / "checkpoint.safetensors").stat().st_mtime_ns
    except FileNotFoundError:
        return None


def train_by_command(folder: Path) -> None:
    """`attittud train`, into folder/job/auto/seed-0."""
    torch.set_num_threads(1)
    job = folder.parent / "job.yaml"
    job.write_text(JOB)
    settings = [f"output={folder}", "strategy.name=auto", "model.name=wideresnet-10-1"]
    with suppress(SystemExit), redirect_stdout(StringIO()):
        main(["train", str(job), "--quiet", *settings])


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs processes that can be killed by a signal"
)
def test_a_killed_run_continues_to_the_same_result(tmp_path):
    whole, tmp_path = tmp_path / "undisturbed" / "x", tmp_path / "killed" / "x"
    whole.parent.mkdir()
    tmp_path.parent.mkdir()
    train_by_command(whole)
    killed, undisturbed = tmp_path / "job/auto/seed-0", whole / "job/auto/seed-0"
    context = ready_processes()  # most of the life of such a process is training
    moments = random.Random(0)
    kills = attempts = 0
    while kills < 4:
        attempts += 1
        assert attempts < 60, "the run is over too early to be killed so often"
        process = context.Process(target=train_by_command, args=(tmp_path,))
        before = _written(killed)
        process.start()
        if attempts % 2:  # while it trains, however slow the machine is
            while process.is_alive() and _written(killed) == before:
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.3))
        else:  # anywhere: while it reads, too
            time.sleep(moments.uniform(0.05, 0.6))
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            # What a killed process leaves is whole, or not there.
            for path in killed.glob("*.json"):
                json.loads(path.read_text())
        elif (killed / "result.json").exists():
            # it was faster than the kill: its last part is done again
            (killed / "result.json").unlink()
    train_by_command(tmp_path)
    assert outcome(killed) == outcome(undisturbed)
    assert not list(tmp_path.rglob(".*.part"))


@pytest.mark.parametrize("strategy", ["auto", "bloop"])
def test_interrupted_runs_of_other_strategies_continue_to_the_same_result(
    tmp_path, strategy, monkeypatch
):
    train_to_end(tmp_path / "whole", strategy)
    saved = files.write_atomically

    def interrupted(path: Path, content: bytes) -> None:
        saved(path, content)
        interrupted.count += path.name.startswith("checkpoint")
        if interrupted.count in (5, 9, 13, 17):
            interrupted.count += 1
            raise KeyboardInterrupt

    interrupted.count = 0
    monkeypatch.setattr("attittud_lab.runs.folder.write_atomically", interrupted)
    times = 0
    while not (tmp_path / "parts" / "result.json").exists():
        try:
            train_to_end(tmp_path / "parts", strategy)
        except KeyboardInterrupt:
            times += 1
    assert times >= 1
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_changed_data_are_noticed(tmp_path):
    unfinished(tmp_path)
    record = json.loads((tmp_path / "data.json").read_text())
    record["primary"]["train"]["rows"][0] += 1
    (tmp_path / "data.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="the data have changed"):
        train_to_end(tmp_path)
