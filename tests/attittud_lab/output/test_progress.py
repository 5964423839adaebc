"""Lines that say how far a run is, and durations as people write and read them."""

import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.errors import InputError
from attittud_lab.output.progress import Lines, Tally, parse_duration, readable, readable_range


def test_lines_say_how_far_and_how_long(monkeypatch, capsys):
    """Evaluations come between logged steps; a resumed phase is as fast as in this process."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("attittud_lab.output.progress.time", clock)
    lines = Lines()
    lines.phase("guided", 1000, 500)
    clock.now += 9
    lines.advance(20, {})
    lines.evaluated({"accuracy": 0.5, "loss": 1.25})  # 9 s for 20 steps
    clock.now += 81
    lines.advance(180, {})  # nothing was said for a while
    lines.evaluated({"accuracy": 0.75, "loss": 1.0})
    assert capsys.readouterr().err.splitlines() == [
        "guided 520/1000 steps, about 2 to 6 min left, validation accuracy 0.5000, loss 1.2500",
        "guided 700/1000 steps, about 1 to 4 min left",
        "guided 700/1000 steps, about 1 to 4 min left, validation accuracy 0.7500, loss 1.0000",
    ]


def test_runs_are_numbered_and_end_with_their_evaluation(capsys):
    lines = Lines("trial")
    lines.stage("final training")
    lines.comparison(5)
    lines.skipped(3)
    run = lines.begin("flip, seed 1")
    run.phase("guided", 10, 0)
    run.evaluated({"accuracy": 0.5})
    run.end()
    (line,) = capsys.readouterr().err.splitlines()
    assert "final training, trial 4 of 5" in line
    assert line.endswith("flip, seed 1: validation accuracy 0.5000")


@given(
    slower=st.floats(0.2, 5),
    noise=st.lists(st.floats(0.9, 1.1), min_size=12, max_size=12),
    at_once=st.integers(1, 3),
)
def test_the_time_left_is_a_range_that_follows_the_measured_pace(slower, noise, at_once):
    """However fast the machine is, the range covers what the remaining runs take."""
    tally = Tally(planned=len(noise), began=0.0)
    assert tally.time_left(5.0) == ""  # no run has been timed
    moments = [100 * slower * sum(noise[: number + 1]) / at_once for number in range(len(noise))]
    for number, moment in enumerate(moments[:-1], 1):
        tally.finished = tally.trained = number
        low, high = ends(tally.time_left(moment).removeprefix(", ").removesuffix(" left"))
        assert low - 1e-6 <= moments[-1] - moment <= high + 1e-6
        assert low < high


@given(st.floats(0, 1e6), st.floats(1, 5))
def test_a_range_is_rounded_outwards(low, factor):
    """Its ends, read back, are not inside of the range, and not far outside."""
    begins, end = ends(readable_range(low, low * factor))
    assert begins <= low * (1 + 1e-9)
    assert end >= low * factor * (1 - 1e-9)
    assert end - low * factor <= max(1.0, low * factor)


def ends(words: str) -> tuple[float, float]:
    """Both ends of a range of durations in words, in seconds."""
    first, last, unit = re.fullmatch(r"(?:about (\d+) to|less than) (\d+) (\w+)", words).groups()
    size = parse_duration(f"1{unit[0]}")
    return int(first or 0) * size, int(last) * size


def test_durations_are_read():
    texts = ["90s", "30m", "2h", "1h30m", "1 h 30 m", "0.5h", "45", "1d"]
    assert [parse_duration(text) for text in texts] == [90, 1800, 7200, 5400, 5400, 1800, 45, 86400]


def test_other_texts_are_refused_as_durations():
    for text in ("", "m", "30x", "-5m", "0s", "5m5m", "1h30", "thirty", "nan", "1e3s"):
        with pytest.raises(InputError, match=repr(text)):
            parse_duration(text)


@given(st.integers(1, 10**6))
def test_durations_can_be_read_back(seconds):
    text = readable(seconds).replace("min", "m").replace(" ", "")
    assert parse_duration(text) == pytest.approx(seconds, rel=0.02, abs=0.5)
