"""Lines that say how far a run is."""

from types import SimpleNamespace

import pytest

from attittud_lab.output.progress import EvaluationLines


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
