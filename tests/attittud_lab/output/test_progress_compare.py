"""Durations as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.errors import InputError
from attittud_lab.output.progress import parse_duration, readable

# ------------------------------------------------------------------------------------------------------------ durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1 h 30 m", 5400),
        ("0.5h", 1800),
        ("45", 45),
        ("1d", 86400),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "30x", "-5m", "0s", "5m5m", "1h30", "thirty", "nan", "1e3s"])
def test_other_texts_are_refused_as_durations(text: str) -> None:
    with pytest.raises(InputError, match="write for example 90s"):
        parse_duration(text)


@given(st.integers(1, 10**6))
def test_durations_can_be_read_back(seconds: int) -> None:
    text = readable(seconds).replace("min", "m").replace(" ", "")
    assert parse_duration(text) == pytest.approx(seconds, rel=0.02, abs=0.5)
