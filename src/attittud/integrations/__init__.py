"""Thin adapters for frameworks; each needs the extra of its name. This file has the numbers that
they log.
"""

from __future__ import annotations

import math

from torch import Tensor

from attittud.report import Report


def missing_extra(adapter: str, error: ImportError) -> ImportError:
    """Make the error for a framework that is not installed; an adapter needs the extra of its name."""
    return ImportError(
        f"attittud.integrations.{adapter} needs the extra {adapter!r}: pip install "
        f"'attittud[{adapter}]', or in a checkout pip install '.[{adapter}]' ({error})"
    )


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
        self._steps = 0
        self._sums: dict[str, Tensor] = {}
        # for each loss, the numbers of the steps in which it was computed
        self._steps_of: dict[str, set[int]] = {}

    def take(self, report: Report) -> Report:
        """End a step with this report; returns the report."""
        self.report = report
        self.end_step()
        if report.refreshed:
            self.refreshed = report
        return report

    def end_step(self) -> None:
        """End a step; `take` does this for a step with a report."""
        self._steps += 1

    def add(self, name: str, loss: Tensor) -> Tensor:
        """Add the loss of a micro-batch to those of this step; returns the loss."""
        if name in self._sums:
            self._sums[name] = self._sums[name] + loss
        else:
            self._sums[name] = loss
        self._steps_of.setdefault(name, set()).add(self._steps)
        return loss

    def losses(self) -> dict[str, Tensor]:
        """Return the mean loss of each task since the last call, over the steps that computed it, and
        begin anew.
        """
        means = {}
        for name, total in self._sums.items():
            means[f"loss_{name}"] = total / len(self._steps_of[name])
        self._sums = {}
        self._steps_of = {}
        return means

    def numbers(self) -> dict[str, float]:
        """Return numbers for a logger; waits for the device. Values that the last step lacks come
        from the last refresh.
        """
        figures: dict[str, float] = {}
        for report in (self.refreshed, self.report):
            if report is not None:
                figures |= numbers(report)
        return figures


def numbers(report: Report) -> dict[str, float]:
    """Return the numbers of a report for a logger: the neutral, helpful and harmful shares of
    ‖g_aux‖², which add up to 1, the agreement, `NUMBERS`, and weights with eta="auto". Unknown
    values (NaN) are left out, because a logger cannot draw them.

    Shares do not depend on a loss scale. With several auxiliary tasks, each task has its own shares
    too.
    """
    values = report.to_dict()
    figures = {name: float(values[name]) for name in NUMBERS}
    prefixes = [""]  # of the values over all tasks
    if len(report.tasks) > 1:
        prefixes += [f"{name}/" for name in report.tasks]
    for prefix in prefixes:
        squares = {part: float(values[f"{prefix}{part}"]) ** 2 for part in PARTS}
        total = sum(squares.values())
        for part, square in squares.items():
            share = 0.0
            if total:
                share = square / total
            figures[f"{prefix}share_{part}"] = share
            weight = f"{prefix}weight_{part}"
            if weight in values:  # eta="auto"
                figures[weight] = float(values[weight])
        figures[f"{prefix}agreement"] = float(values[f"{prefix}agreement"])
    return {f"attittud/{name}": value for name, value in figures.items() if not math.isnan(value)}
