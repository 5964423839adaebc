"""Positions in the pictures of scores. Numbers are per cent of the width or height, so that a
picture fits any screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, cycle, product
from typing import Any

from attittud_lab.compare.candidates import MULTITASK, PRIMARY_ONLY

ROW, REMARK = 40, 14
"""Pixels of height for a candidate: its name, below it a remark (if there is one), and below that
its interval.
"""
BASELINE, DASHES = "6 4", ("", "2 3", "9 3 2 3")
"""Dashes of the baseline's curve and of the others; strategies that share a colour differ in the
dash.
"""
USUAL = (MULTITASK, "auto", "pretrain", "pcgrad", "drop_harmful", "flip")
"""Strategies that have the same colour in every report."""
EDGE = 5.0
"""Per cent of the width that stay free on both sides."""


def looks(labels: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the colour and the dash of each strategy's curve: the same in all reports, and
    different on one page.
    """
    usual = {name: {"color": f"c{number}", "dash": ""} for number, name in enumerate(USUAL, 2)}
    look_of = {PRIMARY_ONLY: {"color": "c1", "dash": BASELINE}} | {
        name: usual[name] for name in labels if name in usual
    }
    every_look = [
        {"color": f"c{number}", "dash": dash}
        for dash, number in product(DASHES, (2, 3, 4, 5, 6, 7, 0))
    ]
    free = [look for look in every_look if look not in look_of.values()]
    others = [name for name in labels if name not in look_of]
    return look_of | dict(zip(others, cycle(free), strict=False))


def leaderboard(
    rows: Sequence[Mapping[str, Any]],
    like: Sequence[Mapping[str, Any]] | None = None,
    sign: str = "",
) -> dict[str, Any]:
    """Return one line for each candidate, with a dot and an interval, and the ticks of the axis
    below.

    The axis also covers the rows of `like`, so that several pictures have the same axis. With a
    `sign`, scores are differences to a baseline at zero; a row may have a dot for each of its
    `values` instead of an interval.
    """
    scored = [row for row in rows if row["score"] is not None]
    zero = [0.0] if sign else []
    unit = "" if sign else " %"
    all_rows = scored if like is None else [row for row in like if row["score"] is not None]
    ends: list[float | None] = []
    for row in all_rows:
        ends += [row["score"], row["low"], row["high"], *row.get("values", ())]
    axis = _Axis([*ends, *zero], sign, unit)
    heights = [ROW + (REMARK if row.get("remark") else 0) for row in scored]
    tops = list(accumulate(heights, initial=0))
    items = [
        {
            **{name: row.get(name) for name in ("label", "remark", "color", "chosen")},
            "top": tops[number],
            "line": tops[number + 1] - 12,
            "low": axis.at(row["score"] if row["low"] is None else row["low"]),
            "high": axis.at(row["score"] if row["high"] is None else row["high"]),
            "dots": [axis.at(value) for value in row.get("values") or [row["score"]]],
            "text": f"{100 * row['score']:{sign}.1f}{unit}",
        }
        for number, row in enumerate(scored)
    ]
    baseline = next(
        (
            axis.at(value)
            for value in [*zero, *(row["score"] for row in scored if row.get("baseline"))]
        ),
        None,
    )
    return {"items": items, "ticks": axis.ticks(), "baseline": baseline, "height": tops[-1]}


def curves(board: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores over steps, vertical lines for phases, and the ticks; `several`:
    there is a line to draw.
    """
    lines = [
        (row, [(step, score) for step, score in row["curve"] if score is not None])
        for row in board["rows"]
        if row["curve"]
    ]
    axis = _Axis([score for _, points in lines for _, score in points])
    wide = _Axis([0, board["steps"]])
    drawn = []
    for row, points in lines:
        places = [(wide.at(step), 100 - axis.at(score)) for step, score in points]
        step, score = row["curve"][row["best"]]
        best = None if score is None else (wide.at(step), 100 - axis.at(score))
        text = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        drawn.append(
            {
                "label": row["label"],
                "color": row["color"],
                "dash": row["dash"],
                "points": text,
                "best": best,
            }
        )
    marks = [
        {"at": wide.at(mark["step"]), "text": f"next phase: {mark['text']}", "kind": "phases"}
        for mark in board["phases"]
    ]
    ticks = [tick | {"at": 100 - tick["at"]} for tick in axis.ticks()]
    steps = [
        {"at": wide.at(value), "text": f"{value:.0f}"}
        for value in wide.values()
        if value == round(value)
    ]
    several = any(len(points) > 1 for _, points in lines)  # a single dot is not a curve
    return {"lines": drawn, "marks": marks, "rows": ticks, "columns": steps, "several": several}


class _Axis:
    """Maps values to positions between 0 and 100."""

    def __init__(self, values: Iterable[float | None], sign: str = "", unit: str = " %") -> None:
        self.sign, self.unit = sign, unit
        finite = [value for value in values if value is not None and math.isfinite(value)] or [
            0.0,
            1.0,
        ]
        self.low, self.high = min(finite), max(finite)
        if self.high - self.low < 1e-9:
            self.low, self.high = self.low - 0.05, self.high + 0.05

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return EDGE + (100 - 2 * EDGE) * share

    def values(self) -> list[float]:
        """Return three to seven round values."""
        wide = self.high - self.low
        ten = 10.0 ** math.floor(math.log10(wide / 3))
        size = next(ten * factor for factor in (1, 2, 5, 10) if wide / (ten * factor) <= 6)
        first = math.ceil(self.low / size - 1e-9)
        return [number * size for number in range(first, math.floor(self.high / size + 1e-9) + 1)]

    def ticks(self) -> list[dict[str, Any]]:
        return [
            {
                "at": self.at(value),
                "text": f"{100 * value:{self.sign if value else ''}.4g}{self.unit}",
            }
            for value in (value or 0.0 for value in self.values())  # no negative zero
        ]
