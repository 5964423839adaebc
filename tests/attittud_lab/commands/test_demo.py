"""`attittud demo` as a person types it: its output, its progress, an interrupt."""

import errno
import json
import os
import pty
import re
import select
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from attittud_lab import demo
from attittud_lab.config.load import load
from attittud_lab.files import cannot_write
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import in_this_process
from tests.helpers.command_line import interrupted, run
from tests.helpers.demonstration import shorten
from tests.helpers.processes import ready_processes

QUICK = ["demo", "--seeds", "2", "--steps", "2"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The demo leaves a report where one works."""
    monkeypatch.chdir(tmp_path)


def test_the_demo_trains_and_prints_its_table(tmp_path, monkeypatch, capsys):
    shorten(monkeypatch)
    path = tmp_path / "result.json"
    code, out, err = run(*QUICK, "--out", str(path), capsys=capsys)
    assert code == 0
    # Without a terminal: a line for each run, with how far it is and how long it will take.
    runs = re.findall(r"run (\d+) of (\d+)(, (?:about|less than) [^:]* left)?: ", err)
    assert [number for number, _, _ in runs] == [str(n + 1) for n in range(len(runs))] and runs[-1][
        0
    ] == runs[-1][1]
    assert all(left for _, _, left in runs[1:-1])
    saved = json.loads(path.read_text())
    for row, (what, _) in demo.ROWS.items():
        assert row in out and what in out
    assert (
        "50 % shifted" in out and "use more (--seeds)" in out and demo.ETA in " ".join(out.split())
    )
    assert (
        ", labels right, seed 1" in err
        and "raise --seeds to at least 5." in saved["decision"]["text"]
    )
    assert saved["seeds"] == [0, 1] and all(
        len(row["values"]) == 2 for row in saved["tables"][0]["rows"]
    )
    report, _, *own = out.strip().splitlines()[-6:]
    assert report == "Report: runs/demo/report.html" and "your own data" in own[0]
    assert [line.split()[:2] for line in own[1:]] == [
        ["attittud", name] for name in ("init", "train", "predict")
    ]
    page = (tmp_path / "runs/demo/report.html").read_text()
    assert all(row in page for row in demo.ROWS) and all(
        quality in page for quality in demo.QUALITIES
    )
    assert json.loads((tmp_path / "runs/demo/comparison.json").read_text()) == saved
    assert load(tmp_path / "runs/demo/config.yaml") == load(demo.CONFIG)


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_trained(capsys):
    code, out, err = run(*QUICK, "--folder", "/dev/null/demo", capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "/dev/null/demo: " in err and "choose another folder with --folder" in err


def test_a_file_that_cannot_be_written_is_found_before_anything_is_trained(monkeypatch, capsys):
    monkeypatch.setattr(demo, "run_all", lambda *_: pytest.fail("trained"))
    code, out, err = run(*QUICK, "--out", "x" * 254, capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "cannot be written" in err and "choose another file with --out" in err


def test_a_disk_that_fills_up_during_the_demo_is_explained_with_a_cure(monkeypatch, capsys):
    def full(*_):
        raise cannot_write(Path("runs/demo/runs/a/seed-0/run.json"), OSError(errno.ENOSPC, "full"))

    monkeypatch.setattr(demo, "run_all", full)
    code, out, err = run(*QUICK, capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        "run.json: the disk is full; free some space, or choose another folder with --folder, and run again"
        in err
    )


def test_an_interrupted_demo_says_that_there_is_no_result(monkeypatch, capsys):
    monkeypatch.setattr(demo, "run_all", interrupted)
    code, out, err = run(*QUICK, capsys=capsys)
    assert (code, out) == (130, "") and err.count("\n") == 1
    assert err.startswith("attittud: interrupted; the demo keeps nothing before its end")
    assert list(Path("runs/demo").iterdir()) == []


def watch(master: int, seen: bytearray, over: threading.Event) -> None:
    """Read what a terminal shows, until the demo is over: a process that outlives it may hold the
    other side open.
    """
    with suppress(OSError):  # how Linux says that the other side is closed
        while select.select([master], [], [], 0.1)[0] or not over.is_set():
            if select.select([master], [], [], 0)[0]:
                seen += os.read(master, 65536)


def test_progress_bar_on_a_terminal_and_the_same_figures_from_two_workers(
    tmp_path, monkeypatch, capsys
):
    """Every row, in two worker processes as by default."""
    monkeypatch.setattr("attittud_lab.placing.processes.get_context", lambda _: ready_processes())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    path, seen = tmp_path / "result.json", bytearray()
    master, slave = pty.openpty()
    over = threading.Event()
    reader = threading.Thread(target=watch, args=(master, seen, over))
    reader.start()
    try:
        with monkeypatch.context() as patch, os.fdopen(slave, "w") as terminal:
            patch.setattr(sys, "stderr", terminal)
            code, table, _ = run(*QUICK, "--out", str(path), capsys=capsys)
    finally:
        over.set()
        reader.join()
    os.close(master)
    assert code == 0 and "primary_only" in table
    assert "runs" in seen.decode() and "68" in seen.decode()
    tables = json.loads(path.read_text())["tables"]
    assert all([row["label"] for row in table["rows"]] == list(demo.ROWS) for table in tables)
    found, again = (table["rows"] for table in tables[1:])
    for (row, quality), rows in {
        ("auto", list(demo.QUALITIES)[1]): found,
        ("flip", list(demo.QUALITIES)[2]): again,
    }.items():
        (values,) = (line["values"] for line in rows if line["label"] == row)
        jobs = [demo.job_of((row, quality, seed), 2, tmp_path / "alone") for seed in (0, 1)]
        with in_this_process() as place:
            alone = [result.test["accuracy"] for _, (result, _) in place.run(jobs, Progress())]
        assert [value["test"] for value in values.values()] == alone
