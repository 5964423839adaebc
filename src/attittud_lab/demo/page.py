"""The demo as content of an HTML page: one table for each quality of the auxiliary labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attittud_lab.compare.table import bar, interval, p_value, percent
from attittud_lab.demo.rows import BASELINE
from attittud_lab.demo.table import conclusions
from attittud_lab.statistics import PROPORTION, differences, summarise


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
    values = {
        row: {seed: value / 100 for seed, value in enumerate(found[quality])}
        for row, found in results["accuracy"].items()
    }
    against, rows = differences(values, BASELINE, PROPORTION), []
    for row, found in values.items():
        own, difference = (
            vars(summarise(list(found.values()), PROPORTION)),
            vars(against[row]) if row in against else {},
        )
        single = [value - values[BASELINE][seed] for seed, value in found.items()] if difference else []
        cells = [row, percent(own["mean"]), percent(own["std"]), interval(own, list(found.values()))]
        cells += [percent(difference.get("mean"), "+"), interval(difference, single, "+"), p_value(difference.get("p"))]
        rows.append({"cells": cells, "interval": bar(difference, single)})
    names = ["strategy", "test %", "std", "95 %", "difference", "95 % of it", "p"]
    return {"name": text, "about": f"Auxiliary labels: {text.removeprefix('labels ')}.", "columns": names, "rows": rows}
