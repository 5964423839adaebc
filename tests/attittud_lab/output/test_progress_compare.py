"""Durations as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.errors import InputError
from attittud_lab.output.progress import parse_duration, readable


def test_durations_are_read() -> None:
    texts = ["90s", "30m", "2h", "1h30m", "1 h 30 m", "0.5h", "45", "1d"]
    assert [parse_duration(text) for text in texts] == [90, 1800, 7200, 5400, 5400, 1800, 45, 86400]


def test_other_texts_are_refused_as_durations() -> None:
    for text in ("", "m", "30x", "-5m", "0s", "5m5m", "1h30", "thirty", "nan", "1e3s"):
        with pytest.raises(InputError, match=repr(text)):
            parse_duration(text)


@given(st.integers(1, 10**6))
def test_durations_can_be_read_back(seconds: int) -> None:
    text = readable(seconds).replace("min", "m").replace(" ", "")
    assert parse_duration(text) == pytest.approx(seconds, rel=0.02, abs=0.5)
