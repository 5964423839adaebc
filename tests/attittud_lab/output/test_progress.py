"""Bars and lines that show how far a run is."""

import io
import itertools
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from attittud_lab.output.progress import Bars, EvaluationLines, RunLines, shares
from tests.helpers.commands import JOB, call


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def test_bars_show_losses_and_shares(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    values = {
        "loss/primary": 1.25,
        "attittud/helpful": 3.0,
        "attittud/harmful": 4.0,
        "attittud/neutral": 0.0,
    }
    with Bars() as bars:
        bars.phase("guided", 10, 2)
        bars.evaluated({"accuracy": 0.5})
        bars.advance(3, values)
    err = " ".join(capsys.readouterr().err.split())
    assert (
        "5/10" in err
        and "primary 1.250" in err
        and "harmful 64%" in err
        and "accuracy 0.500" in err
    )
    assert shares({"loss/primary": 1.0}) is None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, set by the test."""
    found = SimpleNamespace(now=100.0)
    found.monotonic = lambda: found.now
    monkeypatch.setattr("attittud_lab.output.progress.time", found)
    return found


def test_lines_say_how_far_and_how_long(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluations come between logged steps; a resumed phase is as fast as in this process."""
    lines = EvaluationLines()
    lines.phase("guided", 1000, 500)
    clock.now += 9
    lines.advance(20, {})
    lines.evaluated({"accuracy": 0.5, "loss": 1.25})  # 9 s for 20 steps
    clock.now += 81
    lines.advance(180, {})  # nothing was said for a while
    lines.evaluated({"accuracy": 0.75, "loss": 1.0})
    assert capsys.readouterr().err.splitlines() == [
        "guided 520/1000 steps, 0:03:36 left, validation accuracy 0.5000, loss 1.2500",
        "guided 700/1000 steps, 0:02:15 left",
        "guided 700/1000 steps, 0:02:15 left, validation accuracy 0.7500, loss 1.0000",
    ]


def test_a_phase_without_evaluations_has_a_line_now_and_then(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = EvaluationLines("inputs")
    for total, end in ((10_000, "/10000 inputs, 2:46:30 left"), (None, " inputs")):
        lines.phase("predict", total, 0)
        for _ in range(10_000):
            clock.now += 1
            lines.advance(1, {})
        said = capsys.readouterr().err.splitlines()
        assert said[0].startswith(f"predict 10{end}") and 60 < len(said) < 120
    lines.phase("predict", 5, 0)
    lines.advance(5, {})
    assert capsys.readouterr().err == ""  # a short one is silent


def test_an_evaluation_between_logged_steps_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [
        "strategy=flip",
        "training.guided.evaluations=3",
        "training.mode=joint",
        "log_every=100",
    ]
    assert call("train", "job.yaml", *settings) == 0
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
            bars.advance(
                3,
                values
                | {"attittud/helpful": 1.0, "attittud/harmful": 2.0, "attittud/neutral": 4.0},
            )
    lines = [
        re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)
        for line in re.split(r"[\r\n]+", capsys.readouterr().err)
    ]
    assert max(map(len, lines)) <= columns and any("1000003/10000000" in line for line in lines)


@pytest.mark.parametrize(("columns", "cells"), [(80, 16), (120, 20)])
def test_bars_of_a_portfolio_are_wide_enough_to_be_read(
    columns: int, cells: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "multitask 0.1, own head, only a_source_with_a_long_name, fold 2"
    with Bars() as bars:
        bars.stage("rung 1 of 3")
        bars.comparison(15)
        bars.begin(name)
        bars.phase("guided", 300, 300)
        bars.alongside(name).phase("guided", 300, 300)  # its name leaves room for the bar
        bars.advance(0, {"loss/primary": 1.25})
        bars._bars.refresh()
    lines = capsys.readouterr().err.splitlines()
    full = [line for line in lines if "300/300" in line]
    assert (
        len(full) == 2
        and all("━" * cells in line for line in full)
        and max(map(len, lines)) <= columns
    )


def test_runs_that_were_finished_earlier_say_nothing_about_the_pace(clock: SimpleNamespace) -> None:
    out = io.StringIO()
    lines = RunLines(Console(file=out, width=200), noun="trial")
    for shown in (lines, Bars()):
        shown.stage("rung 1 of 2")
        shown.comparison(5)
        shown.skipped(3)
        for name in ("four", "five"):
            shown.begin(name)
            shown.phase("guided", 10, 0)
            clock.now += 8
            shown.end()
    assert out.getvalue().splitlines() == [
        "    0.0 s  rung 1 of 2, trial 4 of 5: four",
        "    8.0 s  rung 1 of 2, trial 5 of 5, about 6 to 15 s left: five",
    ]


def test_the_bar_of_all_runs_forgets_earlier_ones_and_remembers_long_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    with Bars() as bars:
        monkeypatch.setattr(bars._bars, "get_time", lambda: now[0])
        bars.stage("rung 1 of 2")
        bars.comparison(15)
        bars.skipped(3)
        for _ in range(2):
            bars.begin("one")
            now[0] += 60
            bars.end()
        (runs,) = bars._bars.tasks
        assert runs.completed == 5 and runs.time_remaining == 600  # ten runs of a minute


def test_the_three_shares_fit_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    values = {"loss/primary": 1.25, "loss/auxiliary/more": 2.5, "loss/auxiliary/less": 2.5}
    with Bars() as bars:
        bars.phase("finetune", 300, 2)
        bars.advance(
            3, values | {"attittud/helpful": 1.0, "attittud/harmful": 2.0, "attittud/neutral": 4.0}
        )
    err = capsys.readouterr().err
    assert "finetune" in err and "primary 1.250 helpful 5% harmful 19% neutral 76%" in err


def test_runs_at_the_same_time_have_bars_of_their_own() -> None:
    with Bars() as bars:
        bars.comparison(3)
        one, two = bars.alongside("one, seed 0"), bars.alongside("two, seed 0")
        for run in (one, two):
            run.phase("guided", 10, 0)
        one.evaluated({"accuracy": 0.5})
        one.advance(4, {"loss/primary": 0.25})
        runs, *others = bars._bars.tasks
        assert [(task.description, task.completed) for task in others] == [
            ("one, seed 0: guided", 4),
            ("two, seed 0: guided", 0),
        ]
        assert others[0].fields["figures"] == "primary 0.250  validation accuracy 0.500"
        one.phase("finetune", 5, 2)
        assert [task.description for task in bars._bars.tasks[1:]] == [
            "two, seed 0: guided",
            "one, seed 0: finetune",
        ]
        one.end()
        assert [task.description for task in bars._bars.tasks[1:]] == [
            "two, seed 0: guided"
        ] and runs.completed == 1
        two.end()
        assert runs.completed == 2 and len(bars._bars.tasks) == 1


def test_runs_at_the_same_time_have_a_line_when_they_end(clock: SimpleNamespace) -> None:
    out = io.StringIO()
    lines = RunLines(Console(file=out, width=200))
    lines.comparison(3)
    one, two = lines.alongside("one, seed 0"), lines.alongside("two, seed 0")
    one.phase("guided", 10, 0)
    clock.now += 5
    one.advance(5, {})
    one.evaluated({"accuracy": 0.5, "loss": 1.0})
    one.evaluated({"accuracy": 0.6, "loss": 0.9})  # within a second
    one.say("a line")
    two.end()  # was there before
    clock.now += 5
    one.end()
    assert out.getvalue().splitlines() == [
        f"{'':11}one, seed 0: guided 5/10 steps, 0:00:05 left, validation accuracy 0.500, loss 1.000",
        "a line",
        "    5.0 s  run 1 of 3: two, seed 0",
        "   10.0 s  run 2 of 3, about 8 to 15 s left: one, seed 0: validation accuracy 0.600, loss 0.900",
    ]


def test_runs_one_after_another_have_lines_for_evaluations(clock: SimpleNamespace) -> None:
    out = io.StringIO()
    lines = RunLines(Console(file=out, width=200), noun="trial")
    lines.stage("rung 1 of 2")
    lines.comparison(3)
    clock.now += 60  # what comes before the first run says nothing about the runs
    for name in ("one", "two"):
        lines.begin(name)
        lines.phase("guided", 10, 0)
        for accuracy in (0.5, 0.75):
            clock.now += 4
            lines.advance(5, {})
            lines.evaluated({"accuracy": accuracy})
        lines.end()
    lines.begin("three")
    lines.stage(
        "final training"
    )  # counts from 1 again, and knows nothing about the time of its runs
    lines.comparison(2)
    lines.begin("four")
    lines.remaining(90, 200)  # somebody else knows more
    lines.begin("five")
    assert out.getvalue().splitlines() == [
        "   60.0 s  rung 1 of 2, trial 1 of 3: one",
        f"{'':11}guided 5/10 steps, 0:00:04 left, validation accuracy 0.500",
        f"{'':11}guided 10/10 steps, 0:00:00 left, validation accuracy 0.750",
        "   68.0 s  rung 1 of 2, trial 2 of 3, about 10 to 25 s left: two",
        f"{'':11}guided 5/10 steps, 0:00:04 left, validation accuracy 0.500",
        f"{'':11}guided 10/10 steps, 0:00:00 left, validation accuracy 0.750",
        "   76.0 s  rung 1 of 2, trial 3 of 3, about 6 to 15 s left: three",
        "   76.0 s  final training, trial 1 of 2: four",
        "   76.0 s  final training, trial 1 of 2, about 90 s to 4 min left in all: five",
    ]


# A process of its own, as a person sees it: what it writes is read from the other end of a terminal
# of 80 columns.
_LONG_STEP = """
import time
from attittud_lab.output.progress import Bars
with Bars() as bars:
    bars.comparison(1000)
    bars.begin("drop_harmful primary_weight=0.25 with weight 0.3, seed 0")
    bars.phase("guided", 100_000, 0)
    bars.advance(10_000, {"loss/primary": 1.25, "attittud/helpful": 1, "attittud/harmful": 2, "attittud/neutral": 4})
    time.sleep(2.5)
"""


def test_bars_on_a_terminal_of_80_columns_move_in_a_long_step() -> None:
    pty = pytest.importorskip("pty")
    import fcntl
    import termios

    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", _LONG_STEP],
        stderr=far,
        env=environment | {"TERM": "xterm", "PYTHONUNBUFFERED": "1"},
    )
    os.close(far)
    seen: list[tuple[float, str]] = []
    while True:
        try:
            text = os.read(near, 1 << 16).decode(errors="replace")
        except OSError:  # the other end is closed
            break
        if not text:
            break
        seen.append((time.monotonic(), text))
    os.close(near)
    assert process.wait() == 0
    plain = [
        re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)
        for line in re.split(r"[\r\n]+", "".join(t for _, t in seen))
    ]
    assert max(map(len, plain)) <= 80 and any("10000/100000" in line for line in plain)
    # A frame differs from the one before it at least once a second.
    frames = [(when, text) for when, text in seen if "guided" in text]
    changes = [when for (_, before), (when, text) in itertools.pairwise(frames) if text != before]
    assert len(changes) >= 3 and max(b - a for a, b in itertools.pairwise(changes)) < 1
