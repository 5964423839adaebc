"""Positions in the pictures of scores. Numbers are per cent of the width or height, so that a
picture fits any screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, product
from typing import Any

from attittud_lab.compare.candidates import MULTITASK, PRIMARY_ONLY

ROW, REMARK = 40, 14
"""Pixels of height for a candidate: its name, below it a remark (if there is one), and below that
its interval.
"""
INTERVAL = 12
"""Pixels between an interval and the lower edge of its candidate."""
BASELINE, DASHES = "6 4", ("", "2 3", "9 3 2 3")
"""Dashes of the baseline's curve and of the others; strategies that share a colour differ in the
dash.
"""
USUAL = (MULTITASK, "auto", "pretrain", "pcgrad", "drop_harmful", "flip")
"""Strategies that have the same colour in every report."""
EDGE = 5.0
"""Per cent of the width that stay free on both sides."""


def looks(labels: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the colour and the dash of each strategy's curve. Usual strategies look the same in
    all reports; the others get what is free, and two look the same only if nothing is.
    """
    look_of = {PRIMARY_ONLY: {"color": "c1", "dash": BASELINE}}
    for number, name in enumerate(USUAL, 2):
        if name in labels:
            look_of[name] = {"color": f"c{number}", "dash": ""}
    free = []
    for dash, number in product(DASHES, (2, 3, 4, 5, 6, 7, 0)):
        look = {"color": f"c{number}", "dash": dash}
        if look not in look_of.values():
            free.append(look)
    others = [name for name in labels if name not in look_of]
    return look_of | dict(zip(others, cycle(free), strict=False))


def leaderboard(
    rows: Sequence[Mapping[str, Any]],
    like: Sequence[Mapping[str, Any]] | None = None,
    sign: str = "",
) -> dict[str, Any]:
    """Return one line for each candidate, with a dot and an interval, and the ticks of the axis
    below.

    An item has its `low` and `high` end and its `dots` in per cent of the width, and its `top` and
    the `line` of its interval in pixels from the top. The axis also covers the rows of `like`, so that several
    pictures have the same axis. With a `sign`, scores are differences to a baseline at zero; a row
    may have a dot for each of its `values` instead of an interval.
    """
    ends: list[float | None] = []
    for row in like or rows:
        if row["score"] is not None:
            ends += [row["score"], row["low"], row["high"], *row.get("values", ())]
    baseline = None
    if sign:
        axis = _Axis([0.0, *ends], sign)
        baseline = axis.at(0.0)
    else:
        axis = _Axis(ends)
    items = []
    height = 0
    for row in rows:
        score = row["score"]
        if score is None:
            continue
        low = row["low"]
        high = row["high"]
        if low is None or high is None:
            low = score
            high = score
        top = height
        height += ROW
        if row.get("remark"):
            height += REMARK
        items.append(
            {
                "label": row.get("label"),
                "remark": row.get("remark"),
                "color": row.get("color"),
                "chosen": row.get("chosen"),
                "top": top,
                "line": height - INTERVAL,
                "low": axis.at(low),
                "high": axis.at(high),
                "dots": list(map(axis.at, row.get("values") or [score])),
                "text": f"{100 * score:{sign}.1f}{axis.unit}",
            }
        )
        if baseline is None and row.get("baseline"):
            baseline = axis.at(score)
    return {"items": items, "ticks": axis.ticks(), "baseline": baseline, "height": height}


def curves(board: Mapping[str, Any]) -> dict[str, Any]:
    """Return the picture of scores over steps, from the rows, phases and steps of a portfolio's
    page.

    `lines` are the curves of candidates, each with its `best` point. `marks` are vertical lines for
    phases, `rows` and `columns` the ticks of both axes. `several` says whether a curve has more than
    one point, so that there is a line to draw.
    """
    rows = [row for row in board["rows"] if row["curve"]]
    scores: list[float | None] = []
    for row in rows:
        scores += dict(row["curve"]).values()
    vertical = _Axis(scores)
    horizontal = _Axis([0, board["steps"]])
    lines = []
    several = False
    for row in rows:
        points = []
        for step, score in row["curve"]:
            if score is not None:
                points.append(f"{horizontal.at(step):.2f},{100 - vertical.at(score):.2f}")
        step, score = row["curve"][row["best"]]
        best = None
        if score is not None:
            best = (horizontal.at(step), 100 - vertical.at(score))
        line = {"label": row["label"], "color": row["color"], "dash": row["dash"]}
        lines.append({**line, "points": " ".join(points), "best": best})
        several = several or len(points) > 1  # a single dot is not a curve
    marks = []
    for phase in board["phases"]:
        text = f"next phase: {phase['text']}"
        marks.append({"at": horizontal.at(phase["step"]), "text": text, "kind": "phases"})
    ticks = [tick | {"at": 100 - tick["at"]} for tick in vertical.ticks()]
    steps = []
    for value in horizontal.values():
        if value == round(value):
            steps.append({"at": horizontal.at(value), "text": f"{value:.0f}"})
    return {"lines": lines, "marks": marks, "rows": ticks, "columns": steps, "several": several}


class _Axis:
    """Maps values to positions between 0 and 100; with a `sign` they are differences."""

    def __init__(self, values: Iterable[float | None], sign: str = "") -> None:
        """Cover all finite values; if they are equal, also five points on both sides."""
        self.sign = sign
        self.unit = " %"
        if sign:
            self.unit = ""
        finite = [value for value in values if value is not None and math.isfinite(value)]
        self.low = min(finite, default=0.0)
        self.high = max(finite, default=1.0)
        if self.high - self.low < 1e-9:
            self.low -= 0.05
            self.high += 0.05

    def at(self, value: float) -> float:
        """Return EDGE + (100 − 2 EDGE) (value − low) / (high − low)."""
        share = (value - self.low) / (self.high - self.low)
        return EDGE + (100 - 2 * EDGE) * share

    def values(self) -> list[float]:
        """Return three to seven round values: multiples of 1, 2 or 5 times a power of ten.

        Rounding must not exclude an end that is itself a multiple, so ends may be 1e-9 steps off.
        """
        wide = self.high - self.low
        ten = 10.0 ** math.floor(math.log10(wide / 3))
        step = next(ten * factor for factor in (1, 2, 5, 10) if wide / (ten * factor) <= 6)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def ticks(self) -> list[dict[str, Any]]:
        """Return the positions of the round values, and their texts in per cent."""
        ticks = []
        for value in self.values():
            text = "0"  # without a sign
            if value:
                text = f"{100 * value:{self.sign}.4g}"
            ticks.append({"at": self.at(value), "text": text + self.unit})
        return ticks
