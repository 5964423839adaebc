"""Curves of a strategy from the metrics of its runs: joined over seeds, thinned to what a screen can show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attittud_lab.errors import InputError
from attittud_lab.output.progress import shares
from attittud_lab.strategies.layers import PARTS

_LAYERS = "attittud/layers/"
_PLAIN = ("attittud/captured_primary", "attittud/captured_auxiliary", "attittud/effective_rank")
_WEIGHT = "weight_"  # attittud/weight_neutral, or attittud/SOURCE/weight_neutral: those of strategy auto

Point = dict[str, float]


def curves(run_dirs: Sequence[Path], points: int) -> dict[str, Any]:
    """All series of one strategy, by kind: `train` at logged steps, `validation` at evaluations, `layers` too.

    Steps and seconds go on from phase to phase. A point of a thinned series is the mean of its neighbours.
    """
    named = [list(_points(path)) for path in run_dirs]
    runs = [[point for _, point in run] for run in named]
    train = _joined([[p for p in run if "loss/primary" in p] for run in runs])
    validation = _joined([[p for p in run if "validation/loss" in p] for run in runs])
    guided = [p for p in validation if any(name.startswith(_LAYERS) for name in p)]
    return {
        "train": _columns(train, points),
        "validation": _columns([_without_layers(p) for p in validation], points),
        "layers": _layers(_thinned(guided, min(points, 24))),
        "phases": _phases(named[0]),
        "logged": len(train),
    }


def _phases(points: Iterable[tuple[str, Point]]) -> list[dict[str, Any]]:
    """Where each phase begins."""
    found: dict[str, dict[str, Any]] = {}
    step = seconds = 0.0
    for name, point in points:
        found.setdefault(name, {"name": name, "step": _short(step), "seconds": _short(seconds)})
        step, seconds = point["step"], point["seconds"]
    return list(found.values())


def _points(run_dir: Path) -> Iterator[tuple[str, Point]]:
    """The lines of a run with their phase, with `step` and `seconds` from its beginning and shares instead of norms."""
    step0 = seconds0 = step = seconds = 0.0
    phase = None
    for line in _lines(run_dir / "metrics.jsonl"):
        if line.get("phase") != phase:
            phase, step0, seconds0 = line.get("phase"), step, seconds
        step, seconds = step0 + line["step"], seconds0 + line["seconds"]
        point = {
            name: float(value)
            for name, value in line.items()
            if isinstance(value, (int, float))
            and (name.startswith(("loss/", "validation/", _LAYERS)) or name in _PLAIN or _WEIGHT in name)
            and math.isfinite(value)
        }
        parts = shares(line)
        if parts is not None:
            point |= {f"share/{part}": share for part, share in parts.items()}
        yield str(phase), {**point, "step": step, "seconds": seconds}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except ValueError:
                    return  # the run is just being written, or was killed while it was
                if not isinstance(line, dict) or not {"step", "seconds"} <= line.keys():
                    raise InputError(f"{path}: a line without step and seconds; this is no file of metrics")
                yield line
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); give the folder of a run") from None


def _joined(runs: Sequence[Sequence[Point]]) -> list[Point]:
    """Means over the runs that have a step; for validation figures also the lowest and the highest."""
    by_step: dict[float, list[Point]] = {}
    for run in runs:
        for point in run:
            by_step.setdefault(point["step"], []).append(point)
    joined = []
    for step in sorted(by_step):
        found = by_step[step]
        names = {name: None for point in found for name in point}
        mean = {name: fmean(point[name] for point in found if name in point) for name in names}
        for name in names:
            if name.startswith("validation/") and len(found) > 1:
                values = [point[name] for point in found if name in point]
                mean |= {f"{name}/low": min(values), f"{name}/high": max(values)}
        joined.append(mean)
    return joined


def _thinned(points: Sequence[Point], most: int) -> list[Point]:
    size = math.ceil(len(points) / most) if points else 1
    return [_mean(points[start : start + size]) for start in range(0, len(points), size)]


def _mean(points: Sequence[Point]) -> Point:
    names = {name: None for point in points for name in point}
    joined = {name: fmean(point[name] for point in points if name in point) for name in names}
    # Where it ends, so that the last point is the last step.
    return joined | {name: points[-1][name] for name in ("step", "seconds")}


def _columns(points: Sequence[Point], most: int) -> dict[str, list[float | None]]:
    """Series by name, as long as `step`, with null where there is no value."""
    thin = _thinned(points, most)
    names = {name: None for point in thin for name in point}
    return {name: [_short(point.get(name)) for point in thin] for name in names}


def _without_layers(point: Point) -> Point:
    return {name: value for name, value in point.items() if not name.startswith(_LAYERS)}


def _layers(points: Sequence[Mapping[str, float]]) -> dict[str, Any] | None:
    """Shares of the three parts in the auxiliary gradient of each layer, and how large the layer's gradient is."""
    names: dict[str, None] = {}
    for name in _layer_names(points):
        names[name] = None
    if not names:
        return None
    found: dict[str, list[list[float | None]]] = {part: [] for part in (*PARTS, "size")}
    for name in names:
        rows: dict[str, list[float | None]] = {part: [] for part in found}
        for point in points:
            squares = {part: point.get(f"{_LAYERS}{name}/{part}", math.nan) ** 2 for part in PARTS}
            total = sum(squares.values())
            for part in PARTS:
                rows[part].append(_short(squares[part] / total if total > 0 else None, 3))
            rows["size"].append(_short(math.sqrt(total) if total > 0 else None, 3))
        for part, values in rows.items():
            found[part].append(values)
    return {"names": list(names), "step": [_short(point["step"]) for point in points], **found}


def _layer_names(points: Iterable[Mapping[str, float]]) -> Iterator[str]:
    for point in points:
        for name in point:
            if name.startswith(_LAYERS):
                yield name.removeprefix(_LAYERS).rpartition("/")[0]


def _short(value: float | None, digits: int = 5) -> float | None:
    """Rounded to what can be seen; whole numbers without a point, for the size of the page."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded
