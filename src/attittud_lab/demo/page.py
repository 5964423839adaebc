"""The demo as content of an HTML page: one table for each quality of the auxiliary labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attittud_lab.compare.table import interval, p_value, percent
from attittud_lab.demo.rows import BASELINE
from attittud_lab.demo.table import conclusions
from attittud_lab.statistics import holm, paired, summarise


def content(results: Mapping[str, Any]) -> dict[str, Any]:
    """`results` are those of `experiment.run`."""
    n = len(results["settings"]["seeds"])
    return {
        "kind": "demo",
        "title": "Where auxiliary data helps, does nothing and destroys",
        "subtitle": f"scikit-learn's digits with 10 clean labels per class; test accuracy over {n} seeds",
        "metric": "accuracy",
        "decision": None,
        "notes": [
            *conclusions(results),
            "; ".join(f"{row}: {what}" for row, what in results["rows"].items()) + ".",
            f"Differences to {BASELINE} are taken seed by seed; p is Holm-corrected over the rows of a table.",
        ],
        "tables": [_table(results, quality, text) for quality, text in results["qualities"].items()],
        "curves": [],
        "config": json.dumps(results["settings"], indent=1),
        "provenance": results["made_with"] | {"seconds": results["seconds"], "workers": results["workers"]},
    }


def _table(results: Mapping[str, Any], quality: str, text: str) -> dict[str, Any]:
    values = {row: [value / 100 for value in found[quality]] for row, found in results["accuracy"].items()}
    differences = {row: paired(found, values[BASELINE]) for row, found in values.items() if row != BASELINE}
    corrected = dict(zip(differences, holm([found.p for found in differences.values()]), strict=True))
    rows = []
    for row, found in values.items():
        own, difference = vars(summarise(found)), vars(differences[row]) if row in differences else {}
        cells = [row, percent(own["mean"]), percent(own["std"]), interval(own)]
        cells += [percent(difference.get("mean"), "+"), interval(difference, "+"), p_value(corrected.get(row))]
        ends = {name: difference[name] for name in ("mean", "low", "high")} if difference else None
        rows.append({"cells": cells, "interval": ends})
    names = ["strategy", "test %", "std", "95 %", "difference", "95 % of it", "p"]
    return {"name": text, "about": f"Auxiliary labels: {text.removeprefix('labels ')}.", "columns": names, "rows": rows}
