"""Cells of the tables of a portfolio's page: figures, differences and their bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attittud_lab.portfolio.words import outcome, points

_MARKS = {"use": "▲", "no_help": "▼"}


def percent(value: float | None) -> str:
    """Format a share."""
    if value is None:
        return "undefined"
    return f"{100 * value:.1f} %"


def difference(value: float | None) -> str:
    """Format a difference in points."""
    if value is None:
        return "undefined"
    return points(value)


def ends(interval: Mapping[str, Any], sign: str = "") -> str:
    """Format the ends of an interval, with a sign if they are differences."""
    low = interval.get("low")
    high = interval.get("high")
    if low is None or high is None:
        return "no interval"
    if sign:
        return f"{points(low)} to {points(high)}"
    return f"{100 * low:.1f} to {100 * high:.1f}"


def bar(gain: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the bar of a difference, with a mark that says whether it is shown."""
    if not gain or gain["difference"] is None:
        return None
    return {
        "mean": gain["difference"],
        "low": gain.get("low"),
        "high": gain.get("high"),
        "values": [gain["difference"]],
        "mark": _MARKS.get(outcome(gain), "="),
    }


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2g} ms"
