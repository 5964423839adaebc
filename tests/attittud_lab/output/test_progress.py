"""Bars and lines that show how far a run is."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from attittud_lab.output.progress import Bars, EvaluationLines, RunLines, shares
from tests.helpers.commands import JOB


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
