"""Collect the content of a page from the folder of a run or a comparison: a plain dict that also
goes into report.json.

`tables` are alternative views (equal steps, equal seconds); number `open` is shown first. `curves`
has the strategies of each table, in its order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import fmean
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
    next_step,
    notes,
    scatter,
)
from attittud_lab.errors import InputError, command, counted, one_line, short
from attittud_lab.files import read_format, read_json, without_nan
from attittud_lab.output.progress import shares
from attittud_lab.portfolio.leaderboard import NAME as LEADERBOARD
from attittud_lab.report.pictures import looks
from attittud_lab.report.portfolio import portfolio
from attittud_lab.runs.folder import REMARK, VERSION
from attittud_lab.runs.model import cost
from attittud_lab.statistics import FEWEST
from attittud_lab.strategies.guided import PARTS

DROPPED = 0.25
"""A part of the auxiliary gradient counts as dropped below this weight."""
EVERYTHING_DROPPED = (
    "Everything was dropped: in the end, held-out primary examples gained nothing from any part of the auxiliary gradient, so "
    "the last steps were almost the same as with primary_only."
)
LONGEST_TEXT = 40_000
"""How many characters of a configuration are shown; nobody reads more."""


@contextmanager
def understood(folder: Path) -> Iterator[None]:
    """Blame every error inside the block on the files in the folder: they are damaged, or not from
    this program.
    """
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"{folder}: its files are damaged, or were not written by this version ({type(error).__name__}: "
            f"{one_line(error, 200)}); train or compare again in a new folder"
        ) from None


def collect(folder: Path, points: int) -> dict[str, Any]:
    """Return the content of a page; curves have at most `points` points."""
    with understood(folder):
        for name, read in (("comparison.json", _comparison), ("run.json", _run)):
            if (folder / name).is_file():
                content: dict[str, Any] = without_nan(read(folder, points))
                return content
        inside = [path.parent for path in sorted(folder.glob("*/comparison.json"))]
    hint = f"; did you mean {inside[0]}?" if inside else ""
    raise InputError(
        f"{folder}: there is neither a finished comparison (comparison.json) nor a run (run.json) in it; give the folder "
        f"that `attittud train` or `attittud compare` printed{hint}"
    )


def _comparison(folder: Path, points: int) -> dict[str, Any]:
    result = read_format(folder / "comparison.json", COMPARISON)
    tables, groups, details = [], [], []
    for number, table in enumerate(result["tables"]):
        texts = [cells(result, table, row) for row in table["rows"]]
        chosen = decided_row(result, number)
        rows = [
            {
                "cells": list(text.values()),
                "interval": bar(row["to_primary_only"], scatter(table, row)),
                "chosen": row["label"] == chosen,
                "badge": badge(result),
                "baseline": row["label"] == PRIMARY_ONLY,
            }
            for text, row in zip(texts, table["rows"], strict=True)
        ]
        sentence = f"{table['about'][:1].upper()}{about(table)[1:]}"
        tables.append(
            {"name": table["name"], "about": sentence, "columns": list(texts[0]), "rows": rows}
        )
        labels = by_label(table)
        if labels:
            title = f"{result['metric']} by label, {table['name'].lower()}"
            rows = [{"cells": list(row.values()), "interval": None} for row in labels]
            details.append({"title": title, "columns": list(labels[0]), "rows": rows})
        runs = {
            row["label"]: [_inside(folder, path) for path in row["runs"].values()]
            for row in table["rows"]
        }
        look = looks(list(runs))
        groups.append(
            [
                {"label": label, **look[label], **curves(paths, points)}
                for label, paths in runs.items()
            ]
        )
    decides, at = (
        deciding(result),
        "for" if "title" in result else "at",
    )  # the demo's tables are kinds of labels
    order = [decides, *(number for number in range(len(tables)) if number != decides)]
    first = _inside(folder, next(iter(result["tables"][0]["rows"][0]["runs"].values()), ""))
    size = f"{counted(len(groups[0]), 'strategy', 'strategies')}, {counted(len(result['seeds']), 'seed')}"
    return {
        "kind": "comparison",
        "title": result.get("title", f"Comparison: {folder.resolve().parent.name}"),
        "subtitle": f"{size}, {_examples(result['examples'])}",
        "metric": result["metric"],
        "decision": result["decision"]
        | {
            "about": f"Decision {at} {tables[decides]['name'].lower()}",
            "row": decided_row(result, decides),
        }
        | _meaning(folder, result),
        "pictures": _pictures(result, order),
        "notes": notes(result, folder),
        "tables": tables,
        "open": decides,
        "details": details,
        "curves": groups,
        "config": _text(folder / "config.yaml"),
        "provenance": _about(first) | result["made_with"],
    }


_COLORS = {"▲": "good", "▼": "bad"}


def _pictures(result: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """Return the differences to primary_only: one panel for each table; the first panel is sorted
    from best to worst.
    """
    panels = list[dict[str, Any]]()
    for number in order:
        table = result["tables"][number]
        rows = list[dict[str, Any]]()
        for row in table["rows"]:
            interval = bar(row["to_primary_only"], scatter(table, row))
            if interval:
                few = {"values": interval["values"]} if row["to_primary_only"]["n"] < FEWEST else {}
                color = _COLORS.get(interval["mark"], "soft")
                chosen = row["label"] == decided_row(result, number)
                picture = {
                    "label": row["label"],
                    "score": interval["mean"],
                    "low": interval["low"],
                    "high": interval["high"],
                }
                rows.append({**picture, "color": color, "chosen": chosen, "remark": "", **few})
        panels.append({"name": table["name"], "rows": rows})
    places = {row["label"]: -row["score"] for row in panels[0]["rows"]}
    for panel in panels:
        panel["rows"].sort(key=lambda row: places.get(row["label"], 0.0))
    n = len(result["seeds"])
    shown = "a dot for each seed" if n < FEWEST else f"means of {n} seeds with 95 % intervals"
    about = f"In points of test {result['metric']}, {shown}; the dashed line is {PRIMARY_ONLY}, the baseline."
    if n >= FEWEST:
        about += " Green: shown to be better. Red: shown to be worse. Grey: no difference shown."
        if any(row["low"] is None for panel in panels for row in panel["rows"]):
            about += " Without a line: all seeds are equal, or too few."
    return {"title": f"Gain or loss against {PRIMARY_ONLY}", "about": about, "panels": panels}


def _meaning(folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the next command, and what the decision means if the auxiliary data are left out."""
    step = next_step(folder, result)
    dropped = "All auxiliary data are dropped: the model to use was trained on the primary examples alone."
    no_help = (
        step is not None and result["decision"]["outcome"] == "no_help" and "next" not in result
    )
    return ({"next": step} if step else {}) | ({"meaning": dropped} if no_help else {})


def _outcome(
    folder: Path, result: Mapping[str, Any], weights: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the outcome of a finished run, in the form of a decision."""
    metric, phase = result["metric"], result["phases"][-1]
    test, validation = (
        f"{100 * part[metric]:.1f} %" if part.get(metric) is not None else "undefined"
        for part in (result["test"], result["validation"])
    )
    text = (
        f"{test} test {metric}: this is the model after step {phase['best_step']} of {phase['steps']} in phase {phase['name']}, "
        f"chosen because it has {validation} on the {result['examples']['validation']} validation examples."
    )
    outcome: dict[str, Any] = {"outcome": "run", "about": "Result of one run", "text": text}
    if not any("/" in name for name in result["examples"]):
        why = "predicts the label of new examples"
        return outcome | {"next": {"command": command("predict", folder, "INPUTS"), "why": why}}
    dropped = [name for name, about in weights.items() if about["dropped"]]
    outcome["meaning"] = "One run does not show whether the auxiliary data helped."
    if dropped and len(dropped) == len(weights):
        outcome["meaning"] = EVERYTHING_DROPPED
    compare = command("compare", folder / "config.yaml")
    return outcome | {
        "next": {
            "command": compare,
            "why": "shows whether the auxiliary data help or can be left out",
        }
    }


def _run(folder: Path, points: int) -> dict[str, Any]:
    about = read_format(folder / "run.json", VERSION)
    config = about["config"]
    path = folder / "result.json"
    label = str(config["strategy"]["name"])
    result = read_json(path) if path.is_file() else None
    series = curves([folder], points)
    columns, rows, lines = ["figure"], [], []
    metric = str(config["training"]["metric"])
    subtitle = "unfinished: these are the figures so far"
    if metric == "auto":
        metric = "auc" if "validation/auc" in series["validation"] else "accuracy"
    if result is not None:
        metric = result["metric"]
        subtitle = _examples(result["examples"])
        columns = ["figure", "validation", "test"]
        figures = {
            name: (value, result["test"].get(name)) for name, value in result["validation"].items()
        }
        texts = {
            n: ["undefined" if v is None else f"{v:.4f}" for v in pair]
            for n, pair in figures.items()
        }
        rows = [{"cells": [name, *pair], "interval": None} for name, pair in texts.items()]
        lines = [
            f"Phase {phase['name']}: {counted(phase['steps'], 'step')} in {phase['seconds']:.1f} s of training, best step "
            f"{phase['best_step']}"
            + (f", stopped by {phase['stopped']}." if phase["stopped"] else ".")
            for phase in result["phases"]
        ]
        if size := cost(folder):
            lines.append(f"Model: {size}.")
    if isinstance(about.get(REMARK), str):
        lines.append(about[REMARK][:1].upper() + about[REMARK][1:])
    page: dict[str, Any] = {
        "kind": "run",
        "title": f"Run: {label}, seed {config['seed']}",
        "subtitle": subtitle,
        "metric": metric,
        "decision": _outcome(folder, result, series["weights"]) if result else None,
        "notes": lines,
        "tables": [{"name": "Result", "about": "", "columns": columns, "rows": rows}],
        "curves": [[{"label": label, **series}]],
        "config": _text(folder / "config.yaml"),
        "provenance": _about(folder),
    }
    if result is None or not (folder / LEADERBOARD).is_file():
        return page
    name = f"{label[:1].upper()}{label[1:]}: seed {config['seed']}"
    columns = ["out-of-fold" if column == "validation" else column for column in columns]
    title = "All figures of the model: out-of-fold and on the test set"
    figures_of_all = {**page["tables"][0], "columns": columns, "title": title}
    # The networks of folds have no training on all labels. The score by step is drawn above, with
    # all candidates.
    validation = {
        key: values for key, values in series["validation"].items() if key != f"validation/{metric}"
    }
    winner = read_json(folder / LEADERBOARD)["final"]["winner"]
    last = [[{"label": winner, **series, "validation": validation}]] if series["train"] else []
    return (
        page
        | {"title": name, "details": [figures_of_all], "curves": last}
        | portfolio(folder, result)
    )


def _inside(folder: Path, path: str) -> Path:
    """Refuse a path outside of the folder, which a file from somebody else may name."""
    if not (folder / path).resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"{folder / 'comparison.json'}: {short(path)!r} leaves the folder, so this file was not written by compare"
        )
    return folder / path


def _examples(counts: Mapping[str, int]) -> str:
    """Say how many examples there are."""
    others = [
        f"{count} in {name.removeprefix('auxiliary/')}"
        for name, count in counts.items()
        if "/" in name
    ]
    text = f"primary examples: {counts['train']} to train, {counts['validation']} to validate, {counts['test']} to test"
    return text + (f"; auxiliary: {', '.join(others)}" if others else "")


def _about(run: Path) -> dict[str, Any]:
    """Machine, code and time of a run; the configuration is shown elsewhere."""
    path = run / "run.json"
    record = read_json(path) if path.is_file() else {}
    return {
        name: value
        for name, value in record.items()
        if name not in ("config", "version") and value is not None
    }


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    if len(text) <= LONGEST_TEXT:
        return text
    return text[:LONGEST_TEXT] + "\n# (the rest is left out here)\n"


# ------------------------------------------------------------------------------------------- curves

_LAYERS = "attittud/layers/"
_PLAIN = ("attittud/captured_primary", "attittud/captured_auxiliary", "attittud/effective_rank")
# attittud/weight_neutral, or attittud/SOURCE/weight_neutral: weights of strategy auto
_WEIGHT = "weight_"

Point = dict[str, float]


def curves(run_dirs: Sequence[Path], points: int) -> dict[str, Any]:
    """Return all series of one strategy by kind: `train` at logged steps, `validation` and `layers`
    at evaluations.

    Steps and seconds are counted through all phases. Runs are joined by step; a point of a thinned
    series is the mean of its neighbours.
    """
    named = [list(_points(path)) for path in run_dirs]
    train, validation = (
        _joined(
            [point for _, point in run if any(name.startswith(key) for name in point)]
            for run in named
        )
        for key in ("loss/", "validation/loss")
    )
    guided = [p for p in validation if any(name.startswith(_LAYERS) for name in p)]
    plain = [
        {name: value for name, value in p.items() if not name.startswith(_LAYERS)}
        for p in validation
    ]
    columns = _columns(_thinned(train, points))
    return {
        "train": columns,
        "weights": _weights(columns),
        "validation": _columns(_thinned(plain, points)),
        "layers": _layers(_thinned(guided, min(points, 24))),
        "phases": _phases(named[0] if named else ()),
        "logged": len(train),
    }


def _weights(train: Mapping[str, Sequence[float | None]]) -> dict[str, dict[str, Any]]:
    """Describe the final weights that strategy auto gave to the parts of each source, by the prefix
    of their series.
    """
    weights = {}
    for prefix in (
        name.removesuffix("neutral") for name in train if name.endswith(f"{_WEIGHT}neutral")
    ):
        last = {
            part: next((v for v in reversed(train[prefix + part]) if v is not None), 0.0)
            for part in PARTS
        }
        text = ", ".join(f"the {part} part {_counts(weight)}" for part, weight in last.items())
        dropped = max(last.values()) < DROPPED
        text = f"With weight 1 a part counts as in multitask training; with weight 0 it is dropped. In the end {text}."
        text = f"{text} {EVERYTHING_DROPPED}" if dropped else text
        weights[prefix] = {"text": text, "dropped": dropped}
    return weights


def _counts(weight: float) -> str:
    """Say how much a part with this weight counts."""
    if weight >= 0.75:
        return "counts fully or almost fully"
    if weight >= DROPPED:
        return "counts partly"
    return "is dropped or almost dropped"


def _phases(points: Iterable[tuple[str, Point]]) -> list[dict[str, Any]]:
    """Return the step at which each phase begins."""
    phases: dict[str, dict[str, Any]] = {}
    step = seconds = 0.0
    for name, point in points:
        phases.setdefault(name, {"name": name, "step": _short(step), "seconds": _short(seconds)})
        step, seconds = point["step"], point["seconds"]
    return list(phases.values())


def _points(run_dir: Path) -> Iterator[tuple[str, Point]]:
    """Yield the lines of a run with their phase; `step` and `seconds` count from the start of the
    run, shares replace norms.
    """
    step0 = seconds0 = step = seconds = 0.0
    phase = None
    for line in _lines(run_dir / "metrics.jsonl"):
        if line.get("phase") != phase:
            phase, step0, seconds0 = line.get("phase"), step, seconds
        step = step0 + line["step"]
        seconds = seconds0 + line["seconds"]
        point = {
            name: float(value)
            for name, value in line.items()
            if isinstance(value, (int, float))
            and (
                name.startswith(("loss/", "validation/", _LAYERS))
                or name in _PLAIN
                or _WEIGHT in name
            )
            and math.isfinite(value)
        }
        parts = shares(line) or {}
        point |= {f"share/{part}": share for part, share in parts.items()}
        yield str(phase), {**point, "step": step, "seconds": seconds}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError) as error:
                    if not text.endswith("\n"):
                        return  # the last line of a run that is still being written, or was killed
                    line = one_line(error, 80)
                if not isinstance(line, dict) or not {"step", "seconds"} <= line.keys():
                    raise InputError(
                        f"{path}:{number}: is not a line of metrics ({line!s:.80}); train again in a new folder"
                    )
                yield line
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else one_line(error, 80)
        raise InputError(
            f"{short(str(path), 300)}: cannot be read ({reason}); give the folder of a run"
        ) from None


def _joined(runs: Iterable[Sequence[Point]]) -> list[Point]:
    """Return means over the runs that have a step; for validation figures also the lowest and the
    highest.
    """
    by_step: dict[float, list[Point]] = {}
    for run in runs:
        for point in run:
            by_step.setdefault(point["step"], []).append(point)
    joined = []
    for _, same_step in sorted(by_step.items()):
        mean = _mean(same_step)
        for name in [
            name for name in mean if name.startswith("validation/") and len(same_step) > 1
        ]:
            values = [point[name] for point in same_step if name in point]
            mean |= {f"{name}/low": min(values), f"{name}/high": max(values)}
        joined.append(mean)
    return joined


def _names(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(points)))


def _mean(points: Sequence[Point]) -> Point:
    return {
        name: fmean(point[name] for point in points if name in point) for name in _names(points)
    }


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    size = math.ceil(len(points) / most) or 1
    parts = [points[start : start + size] for start in range(0, len(points), size)]
    # A group of points is drawn at its end, so that the last point is the last step.
    return [_mean(part) | {name: part[-1][name] for name in ("step", "seconds")} for part in parts]


def _columns(points: Sequence[Point]) -> dict[str, list[float | None]]:
    """Return series by name, each as long as `step`, with null for missing values."""
    return {name: [_short(point.get(name)) for point in points] for name in _names(points)}


def _layers(points: Sequence[Point]) -> dict[str, Any] | None:
    """Return the shares of the three parts in each layer's auxiliary gradient, and how large that
    gradient is.
    """
    keys = [name.removeprefix(_LAYERS) for name in _names(points) if name.startswith(_LAYERS)]
    names = dict.fromkeys(key.rpartition("/")[0] for key in keys)
    if not names:
        return None

    def cell(point: Point, name: str) -> dict[str, float | None]:
        squares = {part: point.get(f"{_LAYERS}{name}/{part}", math.nan) ** 2 for part in PARTS}
        total = sum(squares.values())
        if not total > 0:
            return dict.fromkeys((*PARTS, "size"))
        shares = {part: square / total for part, square in squares.items()} | {
            "size": math.sqrt(total)
        }
        return {key: _short(value, 3) for key, value in shares.items()}

    cells = [[cell(point, name) for point in points] for name in names]
    by_key = {key: [[shares[key] for shares in row] for row in cells] for key in (*PARTS, "size")}
    return {"names": list(names), "step": [_short(point["step"]) for point in points], **by_key}


def _short(value: float | None, digits: int = 5) -> float | None:
    """Round to the digits that can be seen; whole numbers have no decimal point, to keep the page
    small.
    """
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded
