"""Numbers that follow from measured times: what a refresh costs, what a step costs on average,
memory above multitask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.workloads import SPECS

Results = dict[str, dict[str, Any]]
EVERY = (1, 4, 10)
MODES = ("graph", "eager")
NAMES = {
    "wrn22": "WRN-22-4",
    "resnet18": "ResNet-18",
    "roberta128": "RoBERTa 128",
    "roberta512": "RoBERTa 512",
    "decoder_lora": "decoder with LoRA",
}
"""What pages call the workloads."""
TORCHJD = ("TorchJD sketch, one by one", "TorchJD sketch, vmapped")


@dataclass(frozen=True)
class Figures:
    """One method at one point. Times in seconds; ratios are over the multitask step in the same
    mode.
    """

    job: str
    point: str
    method: str
    mode: str
    step: float
    refresh: float | None
    """What a refresh adds to a step."""
    over: dict[int, float]
    """Mean step over the multitask step, by the number of steps from refresh to refresh."""
    memory_step: float | None
    memory_refresh: float | None
    """Peak above that of the multitask step, in vectors of D float32."""


def amortised(times: dict[str, float], every: int) -> float:
    """Mean seconds of a step when each `every`-th refreshes."""
    return ((every - 1) * times["step"] + times.get("refresh", times["step"])) / every


def figures(job: str, point: str, data: dict[str, Any]) -> Iterator[Figures]:
    """All methods of one point, in both modes."""
    rows = data["methods"]
    multitask = rows.get("multitask", {})
    for mode in MODES:
        base = multitask.get(mode, {}).get("step")
        for method, row in rows.items():
            times = row.get(mode, {})
            if base is None or "step" not in times:
                continue
            # A method needs graphs of both the step and the refresh.
            has_refresh = "refresh" in row.get("eager", {}) or "peak_refresh" in row
            if mode == "graph" and has_refresh and "refresh" not in times:
                continue
            # Ratios to multitask steps next to each turn, where they were measured, are more
            # precise than ratios of medians.
            ratios = row.get("over_multitask") if mode == "eager" else None
            ratios = ratios or {kind: seconds / base for kind, seconds in times.items()}
            yield Figures(
                job,
                point,
                method,
                mode,
                times["step"],
                times["refresh"] - times["step"] if "refresh" in times else None,
                {n: amortised(ratios, n) for n in EVERY},
                *(_vectors(row, multitask, kind, data.get("D")) for kind in ("step", "refresh")),
            )


def _vectors(
    row: dict[str, Any], multitask: dict[str, Any], kind: str, size: int | None
) -> float | None:
    peak = row.get(f"peak_{kind}")
    base = multitask.get("peak_step")
    return None if peak is None or base is None or size is None else (peak - base) / (4 * size)


def every_figure(results: Results) -> list[Figures]:
    """All methods of all workloads."""
    every: list[Figures] = []
    for job, result in results.items():
        if job in SPECS:
            for point, data in result["points"].items():
                every += figures(job, point, data)
    return every


def base_point(results: Results, job: str) -> tuple[str, dict[str, Any]] | None:
    """The point with all methods."""
    points = results.get(job, {}).get("points", {})
    return next(((name, data) for name, data in points.items() if len(data["methods"]) > 6), None)


def default(every: list[Figures], rows: dict[str, Any]) -> Figures | None:
    """Eager steps of a guide with engine="auto". `rows`: all methods of the point."""
    auto = "attittud auto"
    name = rows.get(auto, {}).get("same_as", auto)
    return next((f for f in every if (f.method, f.mode) == (name, "eager")), None)


def ours(every: list[Figures], mode: str) -> dict[str, Figures]:
    """Our engines with a stored basis, in one mode, without the one that freezes BatchNorm."""
    return {
        f.method: f
        for f in every
        if f.mode == mode
        and f.method.startswith("attittud")
        and f.refresh is not None
        and "frozen" not in f.method
    }


def table(results: Results) -> str:
    """Everything in Markdown, one row per method."""
    head = [
        "workload",
        "point",
        "method",
        "mode",
        "step ms",
        "refresh ms",
        *(f"n={n}" for n in EVERY),
    ]
    head += ["memory", "in refresh"]
    eager: list[Figures] = []
    for job, data in results.get("eager", {}).get("points", {}).items():
        eager += figures(job, f"k={data['k']} m={data['m']}", data)
    lines = [head, ["---"] * len(head)]
    lines += [
        [
            f.job, f.point, f.method, f.mode, f"{1e3 * f.step:.2f}", number(f.refresh, 1e3), *(f"{f.over[n]:.3f}" for n in EVERY),
            vectors(f.memory_step), vectors(f.memory_refresh),
        ]
        for f in eager + every_figure(results)
    ]  # fmt: skip
    for point, data in results.get("passes", {}).get("points", {}).items():
        for mode in MODES:
            if mode in data:
                times = "; ".join(
                    f"{name} {1e3 * value:.3f} ms" for name, value in data[mode]["seconds"].items()
                )
                lines.append(["passes", point, times, mode, *([""] * 7)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def in_a_graph(point: dict[str, Any]) -> dict[str, float]:
    """Seconds of the passes, in a CUDA graph if there was one, because a graph measures the device
    alone.
    """
    mode = next(mode for mode in MODES if mode in point)
    times: dict[str, float] = point[mode]["seconds"]
    return times


def growth_with_k(results: Results, engine: str) -> dict[str, float]:
    """The exponent p of time ~ k^p for a refresh in CUDA graphs, by workload.

    In a graph the device alone is measured. Workloads without a sweep over k are left out.
    """
    powers = {}
    for job in NAMES:
        base = base_point(results, job)
        if base is None:
            continue
        points = results[job]["points"]
        line = []
        for one in every_figure({job: results[job]}):
            same_m = points[one.point]["m"] == base[1]["m"]
            measured = one.mode == "graph" and one.refresh is not None
            if same_m and measured and one.method.startswith(f"attittud {engine}"):
                line.append((points[one.point]["k"], one.refresh))
        if len(line) > 1:
            line.sort()
            (small, first), (large, last) = line[0], line[-1]
            powers[job] = math.log(last / first) / math.log(large / small)
    return powers


def number(value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else f"{scale * value:.2f}"


def vectors(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} D"
