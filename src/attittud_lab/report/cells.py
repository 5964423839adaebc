"""Cells of the tables of a portfolio's page: figures, differences and their bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attittud_lab.portfolio.words import points


def percent(value: float | None) -> str:
    """Format a share."""
    return "undefined" if value is None else f"{100 * value:.1f} %"


def difference(value: float | None) -> str:
    """Format a difference in points."""
    return "undefined" if value is None else points(value)


def ends(interval: Mapping[str, Any], sign: str = "") -> str:
    """Format the ends of an interval, with a sign if they are differences."""
    low, high = interval.get("low"), interval.get("high")
    if low is None or high is None:
        return "no interval"
    if sign:
        return f"{points(low)} to {points(high)}"
    return f"{100 * low:.1f} to {100 * high:.1f}"


def bar(gain: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the bar of a difference; its mark says whether zero is inside the interval."""
    if not gain or gain["difference"] is None:
        return None
    low, high = gain.get("low"), gain.get("high")
    if low is None or high is None:
        mark = "?"
    elif low > 0:
        mark = "▲"
    elif high < 0:
        mark = "▼"
    else:
        mark = "="
    values = [gain["difference"]]
    return {"mean": gain["difference"], "low": low, "high": high, "values": values, "mark": mark}


def sure(gain: Mapping[str, Any]) -> str:
    """Say whether a difference is shown to be a gain or a loss."""
    drawn = bar(gain)
    mark = "" if drawn is None else drawn["mark"]
    return {"▲": "helped", "▼": "harmed"}.get(mark, "unclear")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms"
