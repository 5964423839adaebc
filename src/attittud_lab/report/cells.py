"""Cells of the tables of a page: figures, differences and their bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attittud_lab import errors
from attittud_lab.portfolio.leaderboard import answer

_MARKS = {"use": "▲", "no_help": "▼"}


def percent(share: float | None) -> str:
    """Format a share."""
    text = errors.percent(share)
    if not text:
        return "undefined"
    return f"{text} %"


def difference(value: float | None) -> str:
    """Format a difference of shares in points."""
    return errors.percent(value, "+") or "undefined"


def ends(interval: Mapping[str, Any], sign: str = "") -> str:
    """Format the ends of an interval, with the sign "+" if they are differences."""
    low = interval.get("low")
    high = interval.get("high")
    if low is None or high is None:
        return "no interval"
    return f"{errors.percent(low, sign)} to {errors.percent(high, sign)}"


def bar(gain: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the bar of a difference, with a mark that says whether it is shown."""
    if not gain or gain["difference"] is None:
        return None
    return {
        "mean": gain["difference"],
        "low": gain.get("low"),
        "high": gain.get("high"),
        "values": [gain["difference"]],
        "mark": _MARKS.get(answer(gain), "="),
    }


def auxiliary(counts: Mapping[str, int]) -> dict[str, int]:
    """Return how many examples each source has, from the entry `examples` of result.json."""
    prefix = "auxiliary/"
    sources = {}
    for name, count in counts.items():
        if name.startswith(prefix):
            sources[name.removeprefix(prefix)] = count
    return sources


def capitalised(text: str) -> str:
    """Begin a sentence with a capital letter, and leave the other letters as they are."""
    return text[:1].upper() + text[1:]
