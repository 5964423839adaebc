"""Collect the content of a page from the folder of a run or a comparison: a plain dict that also
goes into report.json, and that `assets/page.html` renders.

    kind             comparison, run or portfolio
    title, subtitle  texts of the head
    metric           the figure that chooses the model
    decision         an `Outcome` as a dict; None for a run that is still training
    notes            sentences below the tables
    tables           alternative views, such as equal steps and equal seconds: `name`, `about`,
                     `columns` and `rows`, each with its texts (`cells`) and its bar (`interval`)
    curves           for each table its strategies in the same order, with the series of `curves`
    config           config.yaml
    provenance       machine, code and time

Only comparisons have `pictures` (of the differences), `open` (the table that is shown first) and
`details` (a table with figures by label). The page of a portfolio has the entries of
`report.portfolio` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attittud_lab.compare.candidates import PRIMARY_ONLY
from attittud_lab.compare.content import VERSION as COMPARISON
from attittud_lab.compare.table import (
    about,
    badge,
    bar,
    by_label,
    cells,
    decided_row,
    deciding,
    notes,
    scatter,
)
from attittud_lab.errors import InputError, counted
from attittud_lab.files import read_format, read_json, without_nan
from attittud_lab.portfolio.leaderboard import NAME as LEADERBOARD
from attittud_lab.report.cells import auxiliary, capitalised
from attittud_lab.report.curves import curves
from attittud_lab.report.outcome import outcome
from attittud_lab.report.pictures import looks
from attittud_lab.report.portfolio import portfolio
from attittud_lab.runs.folder import VERSION
from attittud_lab.runs.model import cost
from attittud_lab.statistics import FEWEST

_COLORS = {"▲": "good", "▼": "bad"}


def collect(folder: Path, points: int) -> dict[str, Any]:
    """Return the content of a page; curves have at most `points` points."""
    page: dict[str, Any]
    if (folder / "comparison.json").is_file():
        page = _comparison(folder, points)
    elif (folder / LEADERBOARD).is_file() and (folder / "result.json").is_file():
        page = _run(folder, points)
        page |= portfolio(folder, read_json(folder / "result.json"), page)
    elif (folder / "run.json").is_file():
        page = _run(folder, points)
    else:
        reason = "holds neither a finished comparison (comparison.json) nor a run (run.json)"
        advice = "give the folder that a command printed"
        inside = sorted(folder.glob("*/comparison.json"))
        if inside:
            advice += f"; did you mean {inside[0].parent}?"
        raise InputError(f"{folder}: {reason}; {advice}")
    return without_nan(page)  # type: ignore[no-any-return]  # a dict stays a dict


# -------------------------------------------------------------------------------------- comparisons


def _comparison(folder: Path, points: int) -> dict[str, Any]:
    """Return the page of a comparison."""
    result = read_format(folder / "comparison.json", COMPARISON)
    a_run = next(iter(result["tables"][0]["rows"][0]["runs"].values()))  # it stands for all
    strategies = counted(len(result["tables"][0]["rows"]), "strategy", "strategies")
    seeds = counted(len(result["seeds"]), "seed")
    return {
        "kind": "comparison",
        "title": result.get("title", f"Comparison: {folder.resolve().parent.name}"),
        "subtitle": f"{strategies}, {seeds}, {_examples(result['examples'])}",
        "metric": result["metric"],
        "decision": asdict(outcome(folder)),
        "pictures": _pictures(result),
        "notes": notes(result),
        "tables": [_table(result, number) for number, _ in enumerate(result["tables"])],
        "open": deciding(result),
        "details": _details(result),
        "curves": [_curves(folder, table, points) for table in result["tables"]],
        "config": _text(folder / "config.yaml"),
        "provenance": _provenance(folder / a_run) | result["made_with"],
    }


def _table(result: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a table of a comparison, as the page renders it.

    Its cells are those of the terminal, whose columns may be hidden there.
    """
    table = result["tables"][number]
    chosen = decided_row(result, number)
    rows = []
    for row in table["rows"]:
        texts = cells(result, table, row)
        rows.append(
            {
                "cells": list(texts.values()),
                "interval": bar(row["to_primary_only"], scatter(table, row)),
                "chosen": row["label"] == chosen,
                "badge": badge(result),
                "baseline": row["label"] == PRIMARY_ONLY,
            }
        )
    text = capitalised(about(table))
    return {"name": table["name"], "about": text, "columns": list(texts), "rows": rows}


def _details(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a table with the figures of each label, where there are several at once."""
    details = []
    for table in result["tables"]:
        labels = by_label(table)
        if labels:
            title = f"{result['metric']} by label, {table['name'].lower()}"
            rows = [{"cells": list(row.values()), "interval": None} for row in labels]
            details.append({"title": title, "columns": list(labels[0]), "rows": rows})
    return details


def _curves(folder: Path, table: Mapping[str, Any], points: int) -> list[dict[str, Any]]:
    """Return the curves of each strategy, with its colour."""
    runs = {row["label"]: row["runs"].values() for row in table["rows"]}
    colours = looks(list(runs))
    strategies = []
    for label, paths in runs.items():
        series = curves(list(map(folder.joinpath, paths)), points)
        strategies.append({"label": label, **colours[label], **series})
    return strategies


def _pictures(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the differences to primary_only: a panel for each table, the one that decides first.

    All panels have the order of the first, from best to worst.
    """
    panels: list[dict[str, Any]] = []
    for number, table in enumerate(result["tables"]):
        panels.append({"name": table["name"], "rows": _panel_rows(result, number)})
    panels.insert(0, panels.pop(deciding(result)))
    gains = {row["label"]: row["score"] for row in panels[0]["rows"]}
    for panel in panels:
        panel["rows"].sort(key=lambda row: -gains.get(row["label"], 0.0))
    seeds = len(result["seeds"])
    shown = "a dot for each seed"
    colors = ""
    if seeds >= FEWEST:
        shown = f"means of {seeds} seeds with 95 % intervals"
        colors = " Green: shown to be better. Red: shown to be worse. Grey: no difference shown."
    text = f"In points of test {result['metric']}, {shown}; the dashed line is {PRIMARY_ONLY}, the baseline."
    title = f"Gain or loss against {PRIMARY_ONLY}"
    return {"title": title, "about": text + colors, "panels": panels}


def _panel_rows(result: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """Return a picture for each strategy of a table that has a difference to primary_only."""
    table = result["tables"][number]
    chosen = decided_row(result, number)
    rows = []
    for row in table["rows"]:
        interval = bar(row["to_primary_only"], scatter(table, row))
        if interval:
            picture = {
                "label": row["label"],
                "score": interval["mean"],
                "low": interval["low"],
                "high": interval["high"],
                "color": _COLORS.get(interval["mark"], "soft"),
                "chosen": row["label"] == chosen,
                "remark": "",
            }
            if row["to_primary_only"]["n"] < FEWEST:
                picture["values"] = interval["values"]
            rows.append(picture)
    return rows


# --------------------------------------------------------------------------------------------- runs


def _run(folder: Path, points: int) -> dict[str, Any]:
    """Return the page of a run; an unfinished run has only its curves.

    Its metric may still be "auto"; then the figures on validation say which metric that means.
    """
    record = read_format(folder / "run.json", VERSION)
    config = record["config"]
    label = str(config["strategy"]["name"])
    series = curves([folder], points)
    page: dict[str, Any] = {
        "kind": "run",
        "title": f"Run: {label}, seed {config['seed']}",
        "subtitle": "unfinished: these are the figures so far",
        "metric": str(config["training"]["metric"]),
        "decision": None,
        "notes": [],
        "tables": [{"name": "Result", "about": "", "columns": ["figure"], "rows": []}],
        "curves": [[{"label": label, **series}]],
        "config": _text(folder / "config.yaml"),
        "provenance": _provenance(folder),
    }
    if (folder / "result.json").is_file():
        result = read_json(folder / "result.json")
        page["subtitle"] = _examples(result["examples"])
        page["metric"] = result["metric"]
        page["decision"] = asdict(outcome(folder))
        page["notes"] = _notes(folder, result)
        page["tables"] = [_figures(result)]
    elif page["metric"] == "auto":
        page["metric"] = "accuracy"
        if "validation/auc" in series["validation"]:
            page["metric"] = "auc"
    return page


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with all figures of a run."""
    rows = []
    for name, value in result["validation"].items():
        texts = [name, _four_digits(value), _four_digits(result["test"].get(name))]
        rows.append({"cells": texts, "interval": None})
    columns = ["figure", "validation", "test"]
    return {"name": "Result", "about": "", "columns": columns, "rows": rows}


def _four_digits(value: float | None) -> str:
    """Format a figure of result.json, where NaN is null."""
    if value is None:
        return "undefined"
    return f"{value:.4f}"


def _notes(folder: Path, result: Mapping[str, Any]) -> list[str]:
    """Say how long each phase was, and what the model costs."""
    lines = []
    for phase in result["phases"]:
        steps = counted(phase["steps"], "step")
        line = f"Phase {phase['name']}: {steps} in {phase['seconds']:.1f} s of training"
        line += f", best step {phase['best_step']}"
        if phase["stopped"]:
            line += f", stopped by {phase['stopped']}"
        lines.append(f"{line}.")
    size = cost(folder)
    if size:
        lines.append(f"Model: {size}.")
    return lines


def _examples(counts: Mapping[str, int]) -> str:
    """Say how many examples there are."""
    parts = [f"{counts['train']} to train", f"{counts['validation']} to validate"]
    parts.append(f"{counts['test']} to test")
    for name, count in auxiliary(counts).items():
        parts.append(f"{count} auxiliary in {name}")
    return f"examples: {', '.join(parts)}"


def _provenance(run: Path) -> dict[str, Any]:
    """Return machine, code and time of a run; the configuration is shown elsewhere."""
    path = run / "run.json"
    if not path.is_file():  # the demo's runs may be gone
        return {}
    record = read_json(path)
    for name in ("config", "version"):
        record.pop(name, None)
    return {name: value for name, value in record.items() if value is not None}


def _text(path: Path) -> str:
    """Return the text of a file; empty if there is none."""
    if not path.is_file():
        return ""
    return path.read_text(encoding="utf-8")
