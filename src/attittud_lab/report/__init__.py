"""Turn the collected figures into one HTML file. The page fetches nothing, and no text of a user
becomes markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from attittud_lab.files import OTHER_FOLDER, make_folder, write_atomically
from attittud_lab.report.collect import collect
from attittud_lab.report.outcome import understood
from attittud_lab.report.pictures import curves, leaderboard

LARGEST = 400_000
"""Bytes of a page: small enough to be sent around."""
POINTS = (240, 60, 15)
"""Points of a curve: as many as the size allows."""

_ANSWERS = {"use": "✓", "no_help": "✕", "unclear": "?", "run": "●"}
_SIDES = {"▲": "above", "▼": "below"}


def write_report(folder: Path, output: Path | None = None, advice: str = OTHER_FOLDER) -> Path:
    """Write report.html and report.json into the folder of a run or comparison, or elsewhere;
    returns the page's path. `advice` ends the error where the folder cannot be written.
    """
    with understood(folder):
        data, page = _page(folder)
    target = output or folder
    make_folder(target, advice)
    figures = _bytes(json.dumps(data, ensure_ascii=False))
    write_atomically(target / "report.json", figures, advice)
    write_atomically(target / "report.html", page, advice)
    return target / "report.html"


def _page(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return figures and a page, with fewer and fewer points until the page is small enough, and
    without curves if nothing else helps.
    """
    for points in POINTS:
        data = collect(folder, points)
        page = _bytes(render(data))
        if len(page) <= LARGEST:
            return data, page
    note = "There are too many curves for one page, so they are left out."
    data |= {"curves": [], "notes": [*data["notes"], note]}
    return data, _bytes(render(data))


def _bytes(text: str) -> bytes:
    """Encode a text that may have names of files which are not UTF-8."""
    return text.encode("utf-8", "backslashreplace")


def render(data: Mapping[str, Any]) -> str:
    """Return the HTML of the page.

    Tables and pictures are drawn here. Learning curves are drawn by the script of the page, from the
    JSON in its element `data` (the payload).
    """
    held_out = "validation"
    if data.get("portfolio"):
        held_out = "out-of-fold"
    payload = {
        "metric": data["metric"],
        "curves": data["curves"],
        "tables": [table["name"] for table in data["tables"]],
        "open": data.get("open", 0),
        "row": (data["decision"] or {}).get("row"),
        "held_out": held_out,
    }
    pages = Environment(
        autoescape=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(_asset),
    )
    pages.filters["code"] = _code
    parts = {"details": (), "sections": (), "portfolio": None, "pictures": None, **data}
    return pages.get_template("page.html").render(
        parts,
        asset=_asset,
        bars=_bars,
        leaderboard=leaderboard,
        curves_over_steps=curves,
        answers=_ANSWERS,
        thinning=_thinning(data),
        # Nothing else could end a script element.
        payload=Markup(json.dumps(payload).replace("<", "\\u003c")),
    )


def _asset(name: str) -> Markup:
    """Return a file of `assets`; it is ours, so nothing in it is escaped."""
    return Markup((files("attittud_lab.report") / "assets" / name).read_text(encoding="utf-8"))


def _code(text: str) -> Markup:
    """Return a text with its `commands` set as code, as they are printed for a terminal."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _bars(rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return how each row's difference is drawn: the positions of its dots, and the start and
    length of its `line`, in per cent of the width, with zero in the middle.

    `side` is above or below only if the difference is shown. A row without a difference has an
    empty bar; if no row has one, there are no bars.
    """
    values: list[float] = []
    for row in rows:
        if row["interval"]:
            values += _extent(row["interval"])
    if not values:
        return []
    widest = max(map(abs, values)) or 1.0  # if all are 0, all dots are in the middle
    bars = []
    for row in rows:
        bar: dict[str, Any] = {}
        if row["interval"]:
            bar = _bar(row["interval"], 48 / widest)  # the widest ends 2 % before the edge
        bars.append(bar)
    return bars


def _extent(interval: Mapping[str, Any]) -> list[float]:
    """Return the ends of an interval; its values, if there are too few for one."""
    if interval["low"] is None:
        return list(interval["values"])
    return [interval["low"], interval["high"]]


def _bar(interval: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Return how one difference is drawn: a line for its interval and a dot for its mean, or a dot
    for each seed where there is no interval. A single value is a line from zero.

    A value v is drawn at 50 + scale · v per cent of the width.
    """
    edges = [50 + scale * value for value in _extent(interval)]
    dots = edges
    line = []
    if interval["low"] is not None:
        dots = [50 + scale * interval["mean"]]
        line = [edges[0], edges[1] - edges[0]]
    elif len(edges) == 1:
        line = [min(50.0, edges[0]), abs(edges[0] - 50)]
    return {"side": _SIDES.get(interval["mark"], "around"), "line": line, "dots": dots}


def _thinning(data: Mapping[str, Any]) -> str:
    """Say how much the curves were thinned; empty if there are none."""
    rows = list(chain.from_iterable(data["curves"]))
    logged = max((row["logged"] for row in rows), default=0)
    shown = max((len(row["train"].get("step", ())) for row in rows), default=0)
    if logged > shown:
        return f"Curves are thinned to {shown} points for {logged} logged steps."
    if rows:
        return "Curves show every logged step."
    return ""
