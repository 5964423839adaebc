"""From the collected figures to one HTML file. Nothing in it is fetched, and nothing a user wrote is taken for markup."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from attittud_lab.files import OTHER_FOLDER, make_folder, write_atomically
from attittud_lab.report.collect import collect

NORMAL, LARGEST = 400_000, 1_000_000
"""Bytes that a page should have, and that it never exceeds."""
POINTS = (240, 120, 60, 30, 15)
"""Of a curve: as many as the size allows."""

# No network and no eval, enforced by the browser.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_OUTCOMES = {"use": "✓", "no_help": "✕", "unclear": "?"}


def write_report(folder: Path, output: Path | None = None, cure: str = OTHER_FOLDER) -> Path:
    """report.html and report.json in the folder of a run or comparison, or elsewhere; returns the path of the page."""
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
    make_folder(folder, cure)
    write_atomically(folder / "report.json", json.dumps(data, ensure_ascii=False).encode(), cure)
    write_atomically(folder / "report.html", page, cure)
    return folder / "report.html"


def render(data: Mapping[str, Any]) -> str:
    """The page."""
    title = escape(data["title"])
    # Inside a script element only "<" could end it.
    payload = json.dumps({name: data[name] for name in ("metric", "curves")} | {"tables": _names(data)})
    payload = payload.replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{_asset("uPlot.min.css")}{_asset("page.css")}</style>
</head>
<body>
<main>
<header>
<h1>{title}</h1>
<p class="subtitle">{escape(data["subtitle"])}</p>
{_decision(data["decision"])}
</header>
<section id="result">
<h2>Result</h2>
<div class="switch" data-switch="table"></div>
{"".join(_table(table) for table in data["tables"])}
{"".join(_details(table) for table in data.get("details", ()))}
{"".join(f'<p class="note">{escape(note)}</p>' for note in data["notes"])}
</section>
<div id="charts" hidden></div>
<noscript><p class="note">The curves need JavaScript; the tables do not.</p></noscript>
<section>
<h2>Configuration and provenance</h2>
<details><summary>Configuration</summary><pre>{escape(data["config"])}</pre></details>
<details><summary>Provenance</summary>{_pairs(data["provenance"])}</details>
</section>
<footer>
<p class="note">{escape(_thinning(data))} Plots by uPlot (MIT licence). The figures of this page are in report.json beside it.</p>
</footer>
</main>
<script type="application/json" id="data">{payload}</script>
<script>{_asset("uPlot.iife.min.js")}</script>
<script>{_asset("page.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return (files("attittud_lab.report") / "assets" / name).read_text(encoding="utf-8")


def _names(data: Mapping[str, Any]) -> list[str]:
    return [table["name"] for table in data["tables"]]


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
    widest = max([abs(bar[end]) for bar in bars for end in ("low", "high") if bar[end] is not None], default=0.0)
    names = [*table["columns"], *(["against the baseline"] if bars else [])]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = ""
    for row in table["rows"]:
        first, *rest = (escape(text) for text in row["cells"])
        body += f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{text}</td>" for text in rest)
        body += (f"<td>{_bar(row['interval'], widest)}</td>" if bars else "") + "</tr>"
    small = ' class="small"' if len(names) <= 3 else ""
    return f'<div class="scroll"><table{small}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _bar(interval: Mapping[str, Any] | None, widest: float) -> str:
    """The interval of a difference as a bar around a dot, with zero in the middle."""
    if interval is None or interval["low"] is None or not widest:
        return ""

    def place(value: float) -> float:
        return 50 + 48 * value / widest

    low, mean, high = (place(interval[name]) for name in ("low", "mean", "high"))
    side = "above" if interval["low"] > 0 else "below" if interval["high"] < 0 else "around"
    line = f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
    return f'<div class="bar {side}">{line}<b style="left:{mean:.1f}%"></b></div>'


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in values.items())
    return f"<dl>{rows}</dl>"


def _thinning(data: Mapping[str, Any]) -> str:
    """How much the curves were thinned."""
    rows = [row for group in data["curves"] for row in group]
    logged = max([row["logged"] for row in rows], default=0)
    shown = max([len(row["train"].get("step", ())) for row in rows], default=0)
    if logged <= shown:
        return "Curves show every logged step." if rows else ""
    return f"Curves are thinned: {shown} points for {logged} logged steps, each the mean of its neighbours."
