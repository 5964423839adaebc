"""A run whose n-th file operation fails, n drawn over the whole run: the next run ends as if
nothing had happened.
"""

import json
import os
import random
from pathlib import Path

import pytest
import torch

from attittud_lab.config.load import loads
from attittud_lab.errors import InputError
from attittud_lab.training.train import run
from tests.helpers.failing_files import Operations, end_of_process, no_space
from tests.helpers.interrupted_runs import outcome
from tests.helpers.processes import ready_processes

JOB = """
data: {primary: {path: digits, train: 40, validation: 20, test: 30}, auxiliary: {more: {path: digits, examples: 60}}}
model: {name: mlp, width: 4, dropout: 0.2}
training:
  guided: {steps: 3, evaluations: 2, primary_batch: 8, batch_size: 8}
  finetune: {steps: 2, evaluations: 1, primary_batch: 8}
log_every: 1
checkpoint_every: 1
strategy: {rank: 2, refresh_every: 2}
"""


def train(folder: Path, operations: Operations | None = None) -> None:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        if operations is not None:
            operations.install(patch)
        run(loads(JOB), run_dir=folder)


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of a whole run, and how many file operations it takes."""
    folder = tmp_path_factory.mktemp("undisturbed")
    operations = Operations(folder)
    train(folder, operations)
    assert operations.count > 50
    return folder, operations.count


def drawn(seed: int, count: int) -> list[int]:
    """Four operations of the whole run, and the last five, in which the result replaces the
    checkpoint.
    """
    last = count - 5
    return [*sorted(random.Random(seed).sample(range(1, last + 1), 4)), *range(last + 1, count + 1)]


def check_second_run(folder: Path, whole: Path, number: int) -> None:
    for path in folder.glob("*.json"):
        json.loads(path.read_text())  # whole, or not there
    train(folder)
    assert outcome(folder) == outcome(whole), f"operation {number}"
    assert leftovers(folder) == leftovers(whole), f"operation {number}"


def test_a_full_disk_at_any_file_operation_leaves_a_run_that_can_continue(
    undisturbed: tuple[Path, int], tmp_path: Path
) -> None:
    whole, count = undisturbed
    for number in drawn(0, count):
        folder = tmp_path / str(number)
        with pytest.raises(InputError, match="the disk is full"):
            train(folder, Operations(folder, number, no_space))
        check_second_run(folder, whole, number)


def train_and_end(tasks: list[tuple[Path, int]]) -> None:
    """Each run in a fork of its own, which ends at its operation."""
    train(tasks[0][0].parent / "first")  # imports what is left to import for the forks
    for folder, number in tasks:
        child = os.fork()
        if not child:
            try:
                train(folder, Operations(folder, number, end_of_process))
            finally:
                os._exit(1)  # it was not ended where it should be
        _, status = os.waitpid(child, 0)
        (folder / "status").write_text(str(os.waitstatus_to_exitcode(status)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
def test_a_kill_at_any_file_operation_leaves_a_run_that_can_continue(
    undisturbed: tuple[Path, int], tmp_path: Path
) -> None:
    whole, count = undisturbed
    tasks = [(tmp_path / str(number), number) for number in drawn(1, count)]
    process = ready_processes().Process(
        target=train_and_end, args=(tasks,)
    )  # it has one thread, so it may fork
    process.start()
    process.join()
    assert process.exitcode == 0
    for folder, number in tasks:
        assert (folder / "status").read_text() == "9"
        (folder / "status").unlink()
        check_second_run(folder, whole, number)
