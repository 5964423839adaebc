"""Learning curves of a page: the series in metrics.jsonl, joined over seeds and thinned."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attittud_lab.errors import InputError, one_line
from attittud_lab.output.progress import shares
from attittud_lab.strategies.guided import PARTS

_LAYERS = "attittud/layers/"
_PLAIN = ("attittud/captured_primary", "attittud/captured_auxiliary", "attittud/effective_rank")
# attittud/weight_neutral, or attittud/SOURCE/weight_neutral: weights of strategy auto
_WEIGHT = "weight_"
MOST_LAYERS = 24
"""Evaluations at which the layers are shown."""

Point = dict[str, float]
Columns = dict[str, list[float | None]]


def curves(run_dirs: Sequence[Path], points: int) -> dict[str, Any]:
    """Return all series of one strategy by kind: `train` at logged steps, `validation` and `layers`
    at evaluations.

    Steps and seconds are counted through all phases. Runs are joined by step; a point of a thinned
    series is the mean of its neighbours.
    """
    runs = [list(_points(path)) for path in run_dirs]
    train = _joined(runs, "loss/")
    validation = _joined(runs, "validation/loss")
    with_layers = []
    without_layers = []
    for point in validation:
        plain = dict(point)
        for name in point:
            if name.startswith(_LAYERS):
                del plain[name]
        without_layers.append(plain)
        if len(plain) < len(point):
            with_layers.append(point)
    most_layers = min(points, MOST_LAYERS)
    columns = _columns(_thinned(train, points))
    return {
        "train": columns,
        "weights": _weights(columns),
        "validation": _columns(_thinned(without_layers, points)),
        "layers": _layers(_thinned(with_layers, most_layers)),
        "phases": _phases(runs[0]),
        "logged": len(train),
    }


def _weights(train: Columns) -> dict[str, dict[str, str]]:
    """Say what weights strategy auto gave to the parts in the end, by the prefix of their series."""
    weights = {}
    for name in train:
        if not name.endswith(f"{_WEIGHT}neutral"):
            continue
        prefix = name.removesuffix("neutral")
        ends = []
        for part in PARTS:
            measured = [value for value in train[f"{prefix}{part}"] if value is not None]
            ends.append(f"{part} {measured[-1]:.2f}")
        text = (
            "With weight 1 a part counts as in multitask training; with weight 0 it is dropped. "
            f"In the end: {', '.join(ends)}."
        )
        weights[prefix] = {"text": text}
    return weights


def _phases(points: Sequence[tuple[str, Point]]) -> list[dict[str, Any]]:
    """Return the step and the seconds at which each phase begins, from points with the names of
    their phases.
    """
    phases: dict[str, dict[str, Any]] = {}
    step = 0.0
    seconds = 0.0
    for name, point in points:
        phases.setdefault(name, {"name": name, "step": _short(step), "seconds": _short(seconds)})
        step = point["step"]
        seconds = point["seconds"]
    return list(phases.values())


def _points(run_dir: Path) -> Iterator[tuple[str, Point]]:
    """Yield the shown figures of each line of metrics.jsonl, with the name of its phase.

    In the file, `step` and `seconds` begin anew in each phase; here they count from the start of the
    run. Shares of the parts of the gradient replace their norms.
    """
    step = 0.0
    seconds = 0.0
    phase = None
    for line in _lines(run_dir / "metrics.jsonl"):
        if line.get("phase") != phase:
            phase = line.get("phase")
            first_step = step
            first_seconds = seconds
        step = first_step + line["step"]
        seconds = first_seconds + line["seconds"]
        point = {name: float(value) for name, value in line.items() if _is_shown(name, value)}
        for part, share in (shares(line) or {}).items():
            point[f"share/{part}"] = share
        point["step"] = step
        point["seconds"] = seconds
        yield str(phase), point


def _is_shown(name: str, value: Any) -> bool:
    """Whether a figure has a curve; NaN and infinity have none."""
    has_prefix = name.startswith(("loss/", "validation/", _LAYERS))
    has_curve = has_prefix or name in _PLAIN or _WEIGHT in name
    return has_curve and isinstance(value, (int, float)) and math.isfinite(value)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of metrics.jsonl; the last one may be half, where a run is writing it."""
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                if not text.endswith("\n"):
                    return
                line = one_line(error, 80)
            if not isinstance(line, dict) or not {"step", "seconds"} <= line.keys():
                reason = f"is not a line of metrics ({line!s:.80})"
                raise InputError(f"{path}:{number}: {reason}; train again in a new folder")
            yield line


def _joined(runs: Sequence[Sequence[tuple[str, Point]]], prefix: str) -> list[Point]:
    """Return means over the runs that have a step, of points with a figure that begins so.

    Validation figures of several runs also have their lowest and highest value.
    """
    by_step: dict[float, list[Point]] = {}
    for run in runs:
        for _, point in run:
            if any(name.startswith(prefix) for name in point):
                by_step.setdefault(point["step"], []).append(point)
    joined = []
    for _, same_step in sorted(by_step.items()):
        mean = _mean(same_step)
        if len(same_step) > 1:
            for name, values in _series(same_step).items():
                if name.startswith("validation/"):
                    mean[f"{name}/low"] = min(values)
                    mean[f"{name}/high"] = max(values)
        joined.append(mean)
    return joined


def _series(points: Sequence[Point]) -> dict[str, list[float]]:
    """Return the values of each series at the points that have it, in the order in which the
    series begin.
    """
    series: dict[str, list[float]] = {}
    for point in points:
        for name, value in point.items():
            series.setdefault(name, []).append(value)
    return series


def _mean(points: Sequence[Point]) -> Point:
    """Return the mean of each series over the points that have it."""
    return {name: fmean(values) for name, values in _series(points).items()}


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most `most` points, each the mean of some neighbours at the step of the last of
    them, so that the last point is the last step.
    """
    size = math.ceil(len(points) / most) or 1
    thinned = []
    for start in range(0, len(points), size):
        group = points[start : start + size]
        last = group[-1]
        thinned.append(_mean(group) | {"step": last["step"], "seconds": last["seconds"]})
    return thinned


def _columns(points: Sequence[Point]) -> Columns:
    """Return series by name, each as long as `step`, with null for missing values."""
    columns = {}
    for name in _series(points):
        columns[name] = [_short(point.get(name)) for point in points]
    return columns


def _layers(points: Sequence[Point]) -> dict[str, Any] | None:
    """Return the shares of the parts in each layer's auxiliary gradient, and the gradient's size:
    for each part a list of layers, each a list over the evaluations. None without layers.
    """
    names: dict[str, None] = {}
    for series in _series(points):
        if series.startswith(_LAYERS):
            names[series.removeprefix(_LAYERS).rpartition("/")[0]] = None
    if not names:
        return None
    layers: dict[str, Any] = {}
    for key in (*PARTS, "size"):
        layers[key] = []
    for name in names:
        cells = [_layer(point, name) for point in points]
        for key in (*PARTS, "size"):
            layers[key].append([cell.get(key) for cell in cells])
    return layers | {"names": list(names), "step": _columns(points)["step"]}


def _layer(point: Mapping[str, float], name: str) -> dict[str, float | None]:
    """Return the shares and the size of a layer at one evaluation; empty if all is zero.

    With the norms n of the parts, the size is √Σn² and a share n² / Σn².
    """
    squares = {}
    for part in PARTS:
        squares[part] = point.get(f"{_LAYERS}{name}/{part}", math.nan) ** 2
    total = sum(squares.values())
    if not total > 0:
        return {}
    cell = {"size": _short(math.sqrt(total), 3)}
    for part, square in squares.items():
        cell[part] = _short(square / total, 3)
    return cell


def _short(value: float | None, digits: int = 5) -> float | None:
    """Round to the digits that can be seen; whole numbers have no decimal point, to keep the page
    small.
    """
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    if rounded.is_integer():
        return int(rounded)
    return rounded
