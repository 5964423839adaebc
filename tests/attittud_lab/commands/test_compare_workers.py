"""`attittud compare --workers N` and `--ray`: the same figures, one screen, and processes that die
or are stopped.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from attittud_lab import cli
from attittud_lab.commands import _ADDRESS
from attittud_lab.compare.run import compare
from attittud_lab.config.load import load
from tests.helpers.comparisons import JOB
from tests.helpers.interrupted_runs import outcome

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")
CHANGES = ["compare.equal=steps", "training.guided.steps=100", "checkpoint_every=5"]


def started(folder: Path, *options: str) -> subprocess.Popen[str]:
    (folder / "job.yaml").write_text(JOB)
    command = [
        sys.executable,
        "-m",
        "attittud",
        "compare",
        "job.yaml",
        *CHANGES,
        "--workers",
        "2",
        *options,
    ]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def training(folder: Path, process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that train, when a first checkpoint is there."""
    while not list(folder.rglob("checkpoint.safetensors")) and process.poll() is None:
        time.sleep(0.01)
    children = psutil.Process(process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(tmp_path: Path) -> None:
    process = started(tmp_path)
    training(tmp_path, process)[0].kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "Traceback" not in err, err
    assert (
        "its process was killed by signal 9, which the system does when memory is short. It starts again, and one"
        in err
    )
    there, here = tmp_path / "runs/job/compare", tmp_path / "here"
    compare(load(tmp_path / "job.yaml", CHANGES), here)
    paths = sorted(path.parent.relative_to(here) for path in here.rglob("result.json"))
    assert len(paths) == 8 and [outcome(there / path) for path in paths] == [
        outcome(here / path) for path in paths
    ]
    # Without a terminal: a line for each finished run.
    lines = [line for line in err.splitlines() if " s  run " in line]
    assert [line.split("run ")[1].split(" of")[0] for line in lines] == [
        str(number) for number in range(1, 9)
    ]
    assert all("validation accuracy" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "2", "--ray"], "--workers and --ray cannot be combined"),
        (["--workers", "0"], "--workers"),
        (
            ["--ray", "--quiet"],
            "--ray needs the package 'ray', which is not installed; run: pip install 'attittud[ray]'",
        ),
    ],
)
def test_wrong_values_of_workers_and_ray_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    if "installed" in message:
        monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["compare", "job.yaml", *arguments])
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize("word", ["10.0.0.1:6379", "ray://head:10001"])
def test_addresses_of_ray_clusters_are_recognised(word: str) -> None:
    assert _ADDRESS.fullmatch(word)


@pytest.mark.parametrize("word", ["job.yaml", "C:/a.yaml"])
def test_other_texts_are_not_taken_for_addresses(word: str) -> None:
    assert not _ADDRESS.fullmatch(word)
