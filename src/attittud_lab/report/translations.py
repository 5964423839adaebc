"""What the labels of auxiliary sources mean, and which of them look wrong: parts of a portfolio's
page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attittud_lab.errors import counted
from attittud_lab.portfolio.suspicious import FILE
from attittud_lab.report.cells import ends, percent


def translated(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the matrix and the sentences of each source; `board` is the content of
    leaderboard.json.
    """
    return list(map(_source, board["translations"]))


def _source(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of one source: a matrix of classes x labels, or with many of them a list of
    the largest entries.
    """
    sentences = [sentence["text"] for sentence in table["sentences"]]
    remark = ""
    if not sentences:
        remark = "No label has a clear meaning for your classes."
    about: dict[str, Any] = {
        "source": table["source"],
        "openness": list(map(_openness, table["openness"])),
        "sentences": sentences,
        "remark": remark,
        "several": table["several"],
    }
    if table["whole"]:
        return about | {"kind": "matrix", "columns": table["labels"], "rows": _matrix(table)}
    rows = []
    for entry in table["entries"]:
        names = [table["classes"][entry["class"]], table["labels"][entry["label"]]]
        rows.append([*names, percent(entry["value"]), ends(entry)])
    columns = ["your class", "label", "share", "95 %"]
    return about | {"kind": "list", "columns": columns, "rows": rows}


def _openness(channel: Mapping[str, Any]) -> str:
    """Say λ with its interval, and of which labels it is."""
    labels = ""
    if channel["of"]:
        labels = f" of {' and '.join(channel['of'])}"
    low = channel["low"]
    high = channel["high"]
    interval = "no interval"
    if low is not None:
        interval = f"{low:.2f} to {high:.2f}"
    return f"λ{labels} = {channel['value']:.2f} ({interval})"


def _matrix(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the matrix: a cell has a text, a shade, and a title with its interval and
    count.
    """
    rows = []
    for number, name in enumerate(table["classes"]):
        count = counted(table["counts"][number], "label")
        rows.append({"name": name, "count": count, "cells": [None] * len(table["labels"])})
    for entry in table["entries"]:
        row = rows[entry["class"]]
        label = table["labels"][entry["label"]]
        title = (
            f"{percent(entry['value'])} (95 %: {ends(entry)}) of {row['name']} is called {label}, from "
            f"{row['count']} of yours; {percent(entry['meaning'])} of what is called {label} is {row['name']}"
        )
        share = round(100 * entry["value"])
        row["cells"][entry["label"]] = {"text": str(share), "share": share, "title": title}
    return rows


def suspects(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the examples of each source whose labels look most wrong, with pictures or texts."""
    parts = []
    for source in board["suspicious"]:
        if not source["listed"]:
            continue
        examined = counted(source["examined"], "label")
        if source["examined"] < source["labels"]:
            examined += f", drawn at random from {source['labels']}"
        if source["same_classes"]:
            judge = f"compared with your classes by the learner {source['judge']}"
            chance = f"about {100 * source['rate']:.0f} % as many would be listed by chance"
            remark = f"At most {chance}, and more are right where this learner errs"
        else:
            judge = "compared with the other labels of the source"
            remark = "Many of these may be right after all"
        about = (
            f"{source['source']}: {source['listed']} of {examined} look wrong, {judge}. {remark}, so look "
            f"before you change one. All are in {FILE}."
        )
        parts.append({"about": about, "examples": list(map(_example, source["top"]))})
    return parts


def _example(example: Mapping[str, Any]) -> dict[str, str]:
    """Return an example with its picture or its text; an example of a table has neither."""
    return {
        "name": example["example"],
        "text": example.get("text", ""),
        "picture": example.get("picture", ""),
        "label": example["label"],
        "proposed": f"{example['proposed']} ({percent(example['probability'])})",
    }
