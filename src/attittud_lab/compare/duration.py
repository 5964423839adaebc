"""Durations as people write them: 90s, 30m, 1h30m."""

from __future__ import annotations

import re

from attittud_lab.errors import InputError

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)\s*([dhms])\s*)+")
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([dhms])")


def parse_duration(text: str) -> float:
    """In seconds.

    >>> parse_duration("1h30m"), parse_duration("45")
    (5400.0, 45.0)
    """
    plain = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        plain += "s"
    parts = _PART.findall(plain)
    units = [unit for _, unit in parts]
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not _DURATION.fullmatch(plain) or len(set(units)) < len(units) or not seconds > 0:
        raise InputError(f"budget: {text!r} is no duration; write for example 90s, 30m, 2h or 1h30m")
    return seconds


def readable(seconds: float) -> str:
    """In at most two units.

    >>> readable(0.25), readable(42.3), readable(5400)
    ('0.25 s', '42 s', '1 h 30 min')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(whole / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
