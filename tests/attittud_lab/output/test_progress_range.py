"""A range of durations in words."""

import re

from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.output.progress import parse_duration, readable_range


@given(st.floats(0, 1e6), st.floats(1, 5))
def test_a_range_is_rounded_outwards(low: float, factor: float) -> None:
    """Its ends, read back, are not inside of the range, and not far outside."""
    text = readable_range(low, low * factor).removeprefix("about ").replace("min", "m")
    if text.startswith("less than "):
        assert parse_duration(text.removeprefix("less than ")) >= low * factor
        return
    first, _, last = text.partition(" to ")
    ends = parse_duration(last or first)
    unit = last[-1:]
    begins = parse_duration(first if re.search("[a-z]", first) else f"{first}{unit}")
    assert begins <= low * (1 + 1e-9) and ends >= low * factor * (1 - 1e-9)
    assert low - begins <= max(1.0, low / 2) and ends - low * factor <= max(1.0, low * factor)
