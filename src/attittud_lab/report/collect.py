"""What a page shows, from a folder: a plain dict that also goes into report.json.

`tables` are alternatives of one view (equal steps, equal seconds); `curves` has the strategies of each, in its order.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attittud_lab.compare.table import by_label, cells, notes
from attittud_lab.errors import InputError
from attittud_lab.files import read_json, without_nan
from attittud_lab.report.curves import curves

LONGEST_TEXT = 40_000
"""Characters of a configuration; one that long is no reading."""


def collect(folder: Path, points: int) -> dict[str, Any]:
    """The folder of a run or of a comparison."""
    for name, read in (("comparison.json", _comparison), ("run.json", _run)):
        if not (folder / name).is_file():
            continue
        try:
            found = read(folder, points)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
            raise InputError(
                f"{folder}: the figures in it are not what this version writes ({type(error).__name__}: {error}); train or "
                "compare again in a new folder"
            ) from None
        break
    else:
        inside = [path.parent for path in sorted(folder.glob("*/comparison.json"))]
        hint = f"; did you mean {inside[0]}?" if inside else ""
        raise InputError(
            f"{folder}: there is neither a finished comparison (comparison.json) nor a run (run.json) in it; give the folder "
            f"that `attittud train` or `attittud compare` printed{hint}"
        )
    result: dict[str, Any] = without_nan(found)
    return result


def _comparison(folder: Path, points: int) -> dict[str, Any]:
    result = read_json(folder / "comparison.json")
    tables, groups = [], []
    for table in result["tables"]:
        rows = [
            {"cells": list(cells(result, row).values()), "interval": _interval(row["to_baseline"])}
            for row in table["rows"]
        ]
        tables.append(
            {
                "name": table["name"],
                "about": f"{_sentence(table['about'])} Differences are to {table['baseline']}.",
                "columns": list(cells(result, table["rows"][0])),
                "rows": rows,
            }
        )
        groups.append(
            [
                {"label": row["label"], **curves([_inside(folder, path) for path in row["runs"].values()], points)}
                for row in table["rows"]
            ]
        )
    first = _inside(folder, next(iter(result["tables"][0]["rows"][0]["runs"].values())))
    return {
        "kind": "comparison",
        "title": f"Comparison: {folder.resolve().parent.name}",
        "subtitle": f"{len(groups[0])} strategies, {len(result['seeds'])} paired seeds, {_examples(result['examples'])}",
        "metric": result["metric"],
        "decision": result["decision"] | {"about": f"Decision at {tables[-1]['name'].lower()}"},
        "notes": notes(result),
        "tables": tables,
        "details": [
            {
                "title": f"{result['metric']} by label, {table['name'].lower()}",
                "columns": list(labels[0]),
                "rows": [{"cells": list(row.values()), "interval": None} for row in labels],
            }
            for table in result["tables"]
            if (labels := by_label(table))
        ],
        "curves": groups,
        "config": _text(folder / "config.yaml"),
        "provenance": _about(first, result["made_with"]),
    }


def _run(folder: Path, points: int) -> dict[str, Any]:
    about = read_json(folder / "run.json")
    config = about["config"]
    path = folder / "result.json"
    result = read_json(path) if path.is_file() else None
    label = config["strategy"]["name"]
    columns, rows = ["figure"], []
    if result is not None:
        columns = ["figure", "validation", "test"]
        rows = [
            {"cells": [name, _figure(value), _figure(result["test"][name])], "interval": None}
            for name, value in result["validation"].items()
        ]
    phases = result["phases"] if result else []
    found = curves([folder], points)
    return {
        "kind": "run",
        "title": f"Run: {label}, seed {config['seed']}",
        "subtitle": _examples(result["examples"]) if result else "unfinished: these are the figures so far",
        "metric": result["metric"] if result else _metric(config, found["validation"]),
        "decision": None,
        "notes": [
            (
                f"Phase {phase['name']}: {phase['steps']} steps in {phase['seconds']:.1f} s of training, best step "
                f"{phase['best_step']}" + (f", stopped by {phase['stopped']}." if phase["stopped"] else ".")
            )
            for phase in phases
        ],
        "tables": [{"name": "Result", "about": "", "columns": columns, "rows": rows}],
        "curves": [[{"label": label, **found}]],
        "config": _text(folder / "config.yaml"),
        "provenance": _about(folder, {}),
    }


def _metric(config: Mapping[str, Any], validation: Mapping[str, Any]) -> str:
    """Of an unfinished run: what the configuration says, or what its task needs."""
    wanted = str(config["training"]["metric"])
    return wanted if wanted != "auto" else "auc" if "validation/auc" in validation else "accuracy"


def _figure(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def _inside(folder: Path, path: str) -> Path:
    """A folder of somebody else's may name any path."""
    if not (folder / path).resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"{folder / 'comparison.json'}: {path!r} leaves the folder; this file was not written by compare"
        )
    return folder / path


def _interval(difference: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if difference is None else {name: difference[name] for name in ("mean", "low", "high")}


def _examples(counts: Mapping[str, int]) -> str:
    """In words."""
    others = [f"{count} in {name.removeprefix('auxiliary/')}" for name, count in counts.items() if "/" in name]
    own = f"primary examples: {counts['train']} to train, {counts['validation']} to validate, {counts['test']} to test"
    return own + (f"; auxiliary: {', '.join(others)}" if others else "")


def _about(run: Path, more: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of machine, code and time; the configuration has its own place."""
    path = run / "run.json"
    known = read_json(path) if path.is_file() else {}
    return {name: value for name, value in {**known, **more}.items() if name != "config" and value is not None}


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "\n# (the rest is left out here)\n"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
