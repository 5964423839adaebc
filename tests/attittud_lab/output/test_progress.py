"""Bars and lines that show how far a run is."""

import io
import itertools
import re
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


def test_bars_show_losses_and_shares(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    values = {"loss/primary": 1.25, "attittud/helpful": 3.0, "attittud/harmful": 4.0, "attittud/neutral": 0.0}
    with Bars() as bars:
        bars.phase("guided", 10, 2)
        bars.evaluated({"accuracy": 0.5})
        bars.advance(3, values)
    err = " ".join(capsys.readouterr().err.split())
    assert "5/10" in err and "primary 1.250" in err and "harmful 64%" in err and "accuracy 0.500" in err
    assert shares({"loss/primary": 1.0}) is None


def test_lines_say_how_far_and_how_long(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluations come between logged steps; a resumed phase is as fast as in this process."""
    now = itertools.count(100, 20)
    monkeypatch.setattr("attittud_lab.output.progress.time", SimpleNamespace(monotonic=lambda: next(now)))
    lines = EvaluationLines()
    lines.phase("guided", 1000, 500)
    lines.advance(20, {})
    lines.evaluated({"accuracy": 0.5, "loss": 1.25})  # 20 s for 20 steps
    lines.advance(180, {})
    lines.evaluated({"accuracy": 0.75, "loss": 1.0})
    assert capsys.readouterr().err.splitlines() == [
        "guided 520/1000 steps, 0:08:00 left, validation accuracy 0.5000, loss 1.2500",
        "guided 700/1000 steps, 0:01:00 left, validation accuracy 0.7500, loss 1.0000",
    ]


def test_an_evaluation_between_logged_steps_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "job.yaml", "training.guided.evaluations=3", "training.mode=joint", "log_every=100") == 0
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
            bars.advance(3, values | {"attittud/helpful": 1.0, "attittud/harmful": 2.0, "attittud/neutral": 4.0})
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", capsys.readouterr().err)]
    assert max(map(len, lines)) <= columns and any("1000003/10000000" in line for line in lines)


def test_the_three_shares_fit_into_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    values = {"loss/primary": 1.25, "loss/auxiliary/more": 2.5, "loss/auxiliary/less": 2.5}
    with Bars() as bars:
        bars.phase("finetune", 300, 2)
        bars.advance(3, values | {"attittud/helpful": 1.0, "attittud/harmful": 2.0, "attittud/neutral": 4.0})
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
        assert [task.description for task in bars._bars.tasks[1:]] == ["two, seed 0: guided", "one, seed 0: finetune"]
        one.end()
        assert [task.description for task in bars._bars.tasks[1:]] == ["two, seed 0: guided"] and runs.completed == 1
        two.end()
        assert runs.completed == 2 and len(bars._bars.tasks) == 1


def test_runs_at_the_same_time_have_a_line_when_they_end() -> None:
    out = io.StringIO()
    lines = RunLines(Console(file=out, width=200))
    lines.comparison(2)
    one, two = lines.alongside("one, seed 0"), lines.alongside("two, seed 0")
    one.evaluated({"accuracy": 0.5, "loss": 1.0})
    one.say("a line")
    two.end()
    one.end()
    found = [line[9:].strip() if " s  " in line else line for line in out.getvalue().splitlines()]
    assert found == [
        "a line",
        "run 1 of 2: two, seed 0",
        "run 2 of 2: one, seed 0: validation accuracy 0.500, loss 1.000",
    ]
