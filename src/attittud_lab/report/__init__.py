"""Turn the collected figures into one HTML file. The page fetches nothing, and no text of a user
becomes markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, UndefinedError
from markupsafe import Markup, escape

from attittud_lab.files import OTHER_FOLDER, make_folder, write_atomically
from attittud_lab.report.collect import collect, understood
from attittud_lab.report.pictures import curves, leaderboard

LARGEST = 400_000
"""Bytes of a page: small enough to be sent around."""
POINTS = (240, 120, 60, 30, 15)
"""Points of a curve: as many as the size allows."""

_OUTCOMES = {"use": "✓", "no_help": "✕", "unclear": "?", "run": "●"}
_SIDES = {"▲": "above", "▼": "below"}


def write_report(folder: Path, output: Path | None = None, cure: str = OTHER_FOLDER) -> Path:
    """Write report.html and report.json into the folder of a run or comparison, or elsewhere;
    returns the page's path.
    """
    with understood(folder):
        return write_page(output or folder, lambda points: collect(folder, points), cure)


def write_page(
    folder: Path, content: Callable[[int], dict[str, Any]], cure: str = OTHER_FOLDER
) -> Path:
    """Write a page and its figures for any content, with fewer and fewer points until the page is
    small enough.
    """
    for points in POINTS:
        data = content(points)
        page = render(data).encode()
        if len(page) <= LARGEST:
            break
    else:
        data = {
            **data,
            "curves": [],
            "notes": [
                *data["notes"],
                "There are too many curves for one page, so they are left out.",
            ],
        }
        page = render(data).encode()
    figures = json.dumps(data, ensure_ascii=False).encode()
    make_folder(folder, cure)
    write_atomically(folder / "report.json", figures, cure)
    write_atomically(folder / "report.html", page, cure)
    return folder / "report.html"


def render(data: Mapping[str, Any]) -> str:
    """Return the HTML of the page."""
    names = [table["name"] for table in data["tables"]]
    opened = data.get("open", 0)
    row = (data["decision"] or {}).get("row")
    payload = json.dumps(
        {
            "metric": data["metric"],
            "curves": data["curves"],
            "tables": names,
            "open": opened,
            "row": row,
            "held_out": "out-of-fold" if data.get("portfolio") else "validation",
        }
    )
    pages = Environment(
        autoescape=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(_asset),
    )
    pages.filters["code"] = _code
    try:
        return pages.get_template("page.html").render(
            {"details": (), "sections": (), "portfolio": None, "pictures": None, **data},
            asset=_asset,
            bars=_bars,
            leaderboard=leaderboard,
            curves_over_steps=curves,
            outcomes=_OUTCOMES,
            thinning=_thinning(data),
            payload=Markup(
                payload.replace("<", "\\u003c")
            ),  # nothing else could end a script element
        )
    except UndefinedError as error:
        raise LookupError(str(error)) from None


def _asset(name: str) -> Markup:
    return Markup((files("attittud_lab.report") / "assets" / name).read_text(encoding="utf-8"))


def _code(text: str) -> Markup:
    """Return a text with its `commands` set as code, as they are printed for a terminal."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _bars(rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how each row's difference is drawn: the positions of its dots, and the start and
    length of its `line`.

    Numbers are per cent of the width, with zero in the middle. The line is the interval and the dot
    the mean; with too few seeds for an interval, each seed has a dot. `side` is above or below only
    if the p-value, which allows for the number of rows, shows the difference. A row without a
    difference has an empty bar; if no row has one, there are no bars.
    """
    intervals = [row["interval"] for row in rows]
    if not any(intervals):
        return []
    extents: list[list[float]] = []
    for bar in intervals:
        if not bar:
            extents.append([])
        elif bar["low"] is None:
            extents.append(bar["values"])
        else:
            extents.append([bar["low"], bar["high"]])
    widest = max(map(abs, chain.from_iterable(extents)), default=0.0)
    if widest == 0:
        widest = 1.0  # then all dots are in the middle
    drawn: list[dict[str, Any]] = []
    for bar, both in zip(intervals, extents, strict=True):
        if bar is None:
            drawn.append({})
            continue
        edges = [50 + 48 * value / widest for value in both]
        middle = 50 + 48 * bar["mean"] / widest
        whole = bar["low"] is not None
        ends = []
        if whole:
            ends = edges
        elif len(edges) == 1:  # one value is a line from zero
            ends = sorted([50.0, *edges])
        line = [ends[0], ends[1] - ends[0]] if ends else []
        drawn.append(
            {
                "side": _SIDES.get(bar["mark"], "around"),
                "line": line,
                "dots": [middle] if whole else edges,
            }
        )
    return drawn


def _thinning(data: Mapping[str, Any]) -> str:
    """Say how much the curves were thinned."""
    rows = list(chain.from_iterable(data["curves"]))
    logged = max((row["logged"] for row in rows), default=0)
    shown = max((len(row["train"].get("step", ())) for row in rows), default=0)
    if logged <= shown:
        return "Curves show every logged step." if rows else ""
    return f"Curves are thinned: {shown} points for {logged} logged steps, each the mean of its neighbours."
