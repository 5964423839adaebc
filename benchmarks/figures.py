"""Numbers that follow from measured times: what a refresh costs, what a step costs on average,
memory above multitask. The command prints them, and `benchmarks.page` writes them into docs/cost.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.steps import CYCLE

MODES = ("eager", "graph")
AUTO = "attittud auto"


@dataclass(frozen=True)
class Figures:
    """One method in one mode. Times in seconds; ratios are over the multitask step in the same
    mode.
    """

    method: str
    mode: str
    step: float
    refresh: float | None
    """What a refresh adds to a step."""
    step_over: float
    mean_over: float
    """The mean step, with a refresh in every tenth."""
    memory_step: int | None
    memory_refresh: int | None
    """Peak above that of the multitask step, in bytes."""


def figures(data: dict[str, Any]) -> list[Figures]:
    """All methods of one workload, in both modes."""
    rows = data["methods"]
    multitask = rows["multitask"]
    every = []
    for mode in MODES:
        for method, row in rows.items():
            times = row.get(mode, {})
            has_refresh = "refresh" in row.get("eager", {})
            # In CUDA graphs a method needs both the step and the refresh.
            if "step" not in times or (has_refresh and "refresh" not in times):
                continue
            # Ratios to the multitask steps next to each turn are more precise than ratios of
            # medians.
            ratios = row["over_multitask"]
            if mode == "graph":
                base = multitask[mode]["step"]
                ratios = {kind: seconds / base for kind, seconds in times.items()}
            refresh_over = ratios.get("refresh", ratios["step"])
            refresh = times["refresh"] - times["step"] if has_refresh else None
            every.append(
                Figures(
                    method,
                    mode,
                    step=times["step"],
                    refresh=refresh,
                    step_over=ratios["step"],
                    mean_over=((CYCLE - 1) * ratios["step"] + refresh_over) / CYCLE,
                    memory_step=_above(row, multitask, "peak_step"),
                    memory_refresh=_above(row, multitask, "peak_refresh"),
                )
            )
    return every


def _above(row: dict[str, Any], multitask: dict[str, Any], key: str) -> int | None:
    if key not in row or "peak_step" not in multitask:
        return None
    memory: int = row[key] - multitask["peak_step"]
    return memory


def default(data: dict[str, Any]) -> Figures:
    """Eager steps of a guide with engine="auto"."""
    name = data["methods"][AUTO].get("same_as", AUTO)
    return next(f for f in figures(data) if (f.method, f.mode) == (name, "eager"))


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for line in lines:
        rows.append(f"| {' | '.join(line)} |")
    return "\n".join(rows)


def methods_table(data: dict[str, Any]) -> str:
    """All methods of one workload. Memory is above multitask, in a plain step / in a refresh."""
    lines = []
    for f in figures(data):
        refresh = "" if f.refresh is None else f"{1e3 * f.refresh:.2f}"
        memory = []
        for size in (f.memory_step, f.memory_refresh):
            if size is not None:
                memory.append(f"{size / 1e9:.2f}")
        step = f"{1e3 * f.step:.2f}"
        lines.append([f.method, f.mode, step, refresh, f"{f.mean_over:.3f}", " / ".join(memory)])
    head = ["method", "mode", "step ms", "refresh ms", "mean over multitask", "memory GB"]
    return table(head, lines)
