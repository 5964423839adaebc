"""Lines that say how far a run is."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.output.progress import Lines, _Tally, parse_duration


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
    lines = Lines()
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


@given(
    slower=st.floats(0.2, 5),
    noise=st.lists(st.floats(0.9, 1.1), min_size=12, max_size=12),
    at_once=st.integers(1, 3),
)
def test_the_time_left_is_a_range_that_follows_the_measured_pace(
    slower: float, noise: list[float], at_once: int
) -> None:
    """However fast the machine is, the range covers what the remaining runs take."""
    tally = _Tally()
    tally.planned = len(noise)
    tally.began(0.0)
    assert tally.time_left(5.0) == ""  # no run has been timed
    moments = [100 * slower * sum(noise[: number + 1]) / at_once for number in range(len(noise))]
    for number, moment in enumerate(moments[:-1]):
        tally.finish(trained=True)
        words = tally.time_left(moment).removeprefix(", ").removesuffix(" left")
        low, high = ends(words)
        assert low <= moments[-1] - moment + 1e-6, number
        assert high >= moments[-1] - moment - 1e-6, number
        assert low < high


def ends(words: str) -> tuple[float, float]:
    """Both ends of a range of durations in words, in seconds."""
    text = words.removeprefix("about ").replace("min", "m")
    if text.startswith("less than "):
        return 0.0, parse_duration(text.removeprefix("less than "))
    first, _, last = text.partition(" to ")
    unit = last[-1:]
    begins = parse_duration(first if re.search("[a-z]", first) else f"{first}{unit}")
    return begins, parse_duration(last or first)
