"""Thin adapters for frameworks; each needs the extra of its name. This file has what they share:
numbers for logs, and checks.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from attittud.guide import Guide
from attittud.report import Report

logger = logging.getLogger("attittud")

PARTS = ("neutral", "helpful", "harmful")
NUMBERS = (
    "cosine",
    "captured_auxiliary",
    "captured_primary",
    "effective_rank",
    "skipped_refreshes",
)


class Latest:
    """Keeps the last report, the last report of a step with a refresh, and the losses since the
    last log.

    (With several workers, only steps with a refresh have norms.)
    """

    def __init__(self) -> None:
        self.report: Report | None = None
        self.refreshed: Report | None = None
        self._sums: dict[str, Tensor] = {}
        self._added: dict[
            str, set[int]
        ] = {}  # the numbers of the steps in which each loss was computed
        self._steps = 0

    def take(self, report: Report) -> Report:
        self.report = report
        self.end_step()
        if report.refreshed:
            self.refreshed = report
        return report

    def end_step(self) -> None:
        """End a step; `take` does this for a step with a report."""
        self._steps += 1

    def add(self, name: str, loss: Tensor) -> Tensor:
        self._sums[name] = self._sums[name] + loss if name in self._sums else loss
        self._added.setdefault(name, set()).add(self._steps)
        return loss

    def losses(self) -> dict[str, Tensor]:
        """Return the mean loss of each task over the steps since the last call, if it was computed
        in any of them.
        """
        means = {
            f"loss_{name}": total / len(self._added[name]) for name, total in self._sums.items()
        }
        self._sums, self._added = {}, {}
        return means

    def numbers(self) -> dict[str, float]:
        """Return numbers for a logger; waits for the device. Values that the last step lacks come
        from the last refresh.
        """
        reports = [report for report in (self.refreshed, self.report) if report is not None]
        figures: dict[str, float] = {}
        for report in reports:
            figures |= numbers(report)
        return figures

    def warn_if_dropped(self) -> None:
        """Warn if eta="auto" ended with weight 0 for every part of every task. For the end of
        training: waits for the device.
        """
        tasks = {} if self.report is None else self.report.tasks
        weights = []
        for task in tasks.values():
            if task.earned:
                weights += [getattr(task.earned.weights, part) for part in PARTS]
        if weights and len(weights) == len(PARTS) * len(tasks) and not any(map(float, weights)):
            logger.warning(
                "eta='auto' ended with weight 0 for every auxiliary part, so the last steps used the primary data alone: at the "
                "end the judges saw no sign that the auxiliary data help. If you expect that they do, pass more judges, or "
                "compare with fixed weights such as preset('drop_harmful')"
            )


def numbers(report: Report) -> dict[str, float]:
    """The neutral, helpful and harmful shares of ‖g_aux‖², which add up to 1, and how far the tasks
    agree.

    Shares do not depend on a loss scale. With several auxiliary tasks, each task has its own shares
    too.
    """
    values = report.to_dict()
    figures = {name: float(values[name]) for name in NUMBERS}
    for prefix in ["", *(f"{name}/" for name in report.tasks if len(report.tasks) > 1)]:
        squares = {part: float(values[f"{prefix}{part}"]) ** 2 for part in PARTS}
        total = sum(squares.values())
        for part, square in squares.items():
            figures[f"{prefix}share_{part}"] = square / total if total else 0.0
            if (weight := f"{prefix}weight_{part}") in values:  # eta="auto"
                figures[weight] = float(values[weight])
        figures[f"{prefix}agreement"] = float(values[f"{prefix}agreement"])
    # Unknown values (NaN) are left out, because a logger cannot draw them.
    return {f"attittud/{name}": value for name, value in figures.items() if not math.isnan(value)}


def check_settings(settings: Any, where: str) -> dict[str, Any]:
    """Return the keyword arguments of a `Guide`; refuses a misspelt one. `where` names the user's
    argument.
    """
    example = f"write for example {where}=preset('drop_harmful'), or {where}={{'eta': Eta(1, 1, 0), 'rank': 5}}"
    if not isinstance(settings, Mapping):
        raise TypeError(
            f"{where} must be a dict with the arguments of a Guide, got {settings!r:.100}; {example}"
        )
    arguments = [name for name in inspect.signature(Guide).parameters if name != "model"]
    for name in settings:
        if name not in arguments:
            raise TypeError(
                f"{where}: a Guide has no argument {name!r}{meant(name, arguments)}; it has {', '.join(arguments)}"
            )
    if "eta" not in settings:
        raise TypeError(f"{where} has no 'eta', the weights of the three parts; {example}")
    return dict(settings)


def meant(name: object, names: Collection[str]) -> str:
    """Return a hint at the known name that a misspelt one probably means; empty if none is
    close.
    """
    near = get_close_matches(str(name), names, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
