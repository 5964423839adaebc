"""From the collected figures to one HTML file. Nothing in it is fetched, and nothing a user wrote is taken for markup."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from attittud_lab.files import OTHER_FOLDER, make_folder, write_atomically
from attittud_lab.report.collect import collect, understood

NORMAL, LARGEST = 400_000, 1_000_000
"""Bytes that a page should have, and that it never exceeds."""
POINTS = (240, 120, 60, 30, 15)
"""Points of a curve: as many as the size allows."""

_OUTCOMES = {"use": "✓", "no_help": "✕", "unclear": "?"}
_SIDES = {"▲": "above", "▼": "below"}


def write_report(folder: Path, output: Path | None = None, cure: str = OTHER_FOLDER) -> Path:
    """report.html and report.json in the folder of a run or comparison, or elsewhere; returns the path of the page."""
    with understood(folder):
        return write_page(output or folder, lambda points: collect(folder, points), cure)


def write_page(folder: Path, content: Callable[[int], dict[str, Any]], cure: str = OTHER_FOLDER) -> Path:
    """The same for any content, which is asked for with ever fewer points until the page is small enough."""
    for points in POINTS:
        data = content(points)
        page = render(data).encode()
        if len(page) <= NORMAL:
            break
    if len(page) > LARGEST:
        data = {**data, "curves": [], "notes": [*data["notes"], "The curves are too many for one page and left out."]}
        page = render(data).encode()
    figures = json.dumps(data, ensure_ascii=False).encode()
    make_folder(folder, cure)
    write_atomically(folder / "report.json", figures, cure)
    write_atomically(folder / "report.html", page, cure)
    return folder / "report.html"


def render(data: Mapping[str, Any]) -> str:
    """The page."""
    names, opened = [table["name"] for table in data["tables"]], data.get("open", 0)
    payload = json.dumps({"metric": data["metric"], "curves": data["curves"], "tables": names, "open": opened})
    return Template(_asset("page.html")).substitute(
        title=escape(data["title"]),
        subtitle=escape(data["subtitle"]),
        css=_asset("uPlot.min.css") + _asset("page.css"),
        decision=_decision(data["decision"]),
        tables="".join(map(_table, data["tables"])),
        details="".join(map(_details, data.get("details", ()))),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in data["notes"]),
        config=escape(data["config"]),
        provenance=_pairs(data["provenance"]),
        thinning=escape(_thinning(data)),
        data=payload.replace("<", "\\u003c"),  # nothing else could end a script element
        uplot=_asset("uPlot.iife.min.js"),
        script=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return (files("attittud_lab.report") / "assets" / name).read_text(encoding="utf-8")


def _decision(decision: Mapping[str, Any] | None) -> str:
    if decision is None:
        return ""
    mark = _OUTCOMES[decision["outcome"]]
    text = f"<strong>{escape(decision['about'])}</strong><br>{escape(decision['text'])}"
    return f'<p class="decision {decision["outcome"]}"><span aria-hidden="true">{mark}</span><span>{text}</span></p>'


def _details(table: Mapping[str, Any]) -> str:
    """A table to open."""
    return f"<details><summary>{escape(table['title'])}</summary>{_grid(table)}</details>"


def _table(table: Mapping[str, Any]) -> str:
    about = f'<p class="about">{escape(table["about"])}</p>' if table["about"] else ""
    return f'<div class="table">{about}{_grid(table) if table["rows"] else ""}</div>'


def _grid(table: Mapping[str, Any]) -> str:
    bars = [row["interval"] for row in table["rows"] if row["interval"]]
    widest = max((abs(end) for bar in bars for end in _ends(bar)), default=0.0)
    names = [*table["columns"], *(["against the baseline"] if bars else [])]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = ""
    for row in table["rows"]:
        first, *rest = (escape(text) for text in row["cells"])
        chosen = row.get("chosen", False)
        badge = ' <span class="badge">◀ decision</span>' if chosen else ""
        body += f'<tr{" class=chosen" if chosen else ""}><th scope="row">{first}{badge}</th>'
        body += "".join(f"<td>{text}</td>" for text in rest)
        body += (f"<td>{_bar(row['interval'], widest)}</td>" if bars else "") + "</tr>"
    small = ' class="small"' if len(names) <= 3 else ""
    return f'<div class="scroll"><table{small}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ends(bar: Mapping[str, Any]) -> list[float]:
    """The interval of a difference; where the seeds are too few for one, their values."""
    return list(bar["values"]) if bar["low"] is None else [bar["low"], bar["high"]]


def _bar(bar: Mapping[str, Any] | None, widest: float) -> str:
    """The interval of a difference as a line around a dot, or a dot for every seed, with zero in the middle.

    A colour says that the difference is shown, by the p-value that allows for the number of rows.
    """
    if bar is None or not widest:
        return ""
    ends = [50 + 48 * value / widest for value in _ends(bar)]
    line, dots = "", ends
    if bar["low"] is not None:
        line = f'<i style="left:{ends[0]:.1f}%;width:{ends[1] - ends[0]:.1f}%"></i>'
        dots = [50 + 48 * bar["mean"] / widest]
    marks = "".join(f'<b style="left:{dot:.1f}%"></b>' for dot in dots)
    return f'<div class="bar {_SIDES.get(bar["mark"], "around")}">{line}{marks}</div>'


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in values.items())
    return f"<dl>{rows}</dl>"


def _thinning(data: Mapping[str, Any]) -> str:
    """How much the curves were thinned."""
    rows = [row for group in data["curves"] for row in group]
    logged = max((row["logged"] for row in rows), default=0)
    shown = max((len(row["train"].get("step", ())) for row in rows), default=0)
    if logged <= shown:
        return "Curves show every logged step." if rows else ""
    return f"Curves are thinned: {shown} points for {logged} logged steps, each the mean of its neighbours."
