"""Two workers under each framework's launcher train as one process does on the joined batches."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("lightning")

from accelerate.state import AcceleratorState

from tests.helpers.two_workers import RUNS

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings(
        "ignore:There is a performance drop because we have not yet implemented the batching rule",
        "ignore:'pin_memory' argument is set as true but no accelerator:UserWarning",
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",
        "ignore:The '.*_dataloader' does not have many workers",
        "ignore:Checkpoint directory .* exists and is not empty",
        "ignore:Starting from v1.9.0, `tensorboardX` has been removed",
    ),
]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[float]]]:
    folder = tmp_path_factory.mktemp("workers")
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    # What torchrun sets; each worker adds its number.
    env = os.environ | {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "GROUP_RANK": "0"}
    env |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "CI": "1"}
    script = Path(__file__).parents[2] / "helpers" / "two_workers.py"
    done = subprocess.run(
        [sys.executable, script, folder],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return [json.loads((folder / f"{number}.json").read_text()) for number in "01"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize("name", RUNS)
def test_two_workers_train_like_one_process_on_the_joined_batch(
    workers, name, tmp_path, monkeypatch
):
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("CI", "1")  # TRL then sends no telemetry
    alone = RUNS[name](str(tmp_path))
    # Accelerate's loop knows its own worker's losses only; in the other two every worker has the
    # same numbers.
    found = [[sum(pair) / 2 for pair in zip(*(worker[name] for worker in workers), strict=True)]]
    if not name.startswith("accelerate"):
        found += [worker[name] for worker in workers]
    for numbers in found:
        assert numbers == pytest.approx(alone, rel=2e-4)
