"""What a trainer's log says about the latest steps."""

from __future__ import annotations

import math

from torch import Tensor

from attittud.report import Report

PARTS = ("neutral", "helpful", "harmful")


class Latest:
    """Keeps the last report, the last report of a step with a refresh, and the losses since the last log.

    (Several workers state norms only in steps with a refresh.)
    """

    def __init__(self) -> None:
        self.report: Report | None = None
        self.refreshed: Report | None = None
        self._sums: dict[str, Tensor] = {}
        self._steps = 0

    def take(self, report: Report) -> Report:
        self.report = report
        self._steps += 1
        if report.refreshed:
            self.refreshed = report
        return report

    def add(self, name: str, loss: Tensor) -> Tensor:
        self._sums[name] = self._sums[name] + loss if name in self._sums else loss
        return loss

    def losses(self) -> dict[str, Tensor]:
        """The mean loss of each task over the steps since the last call."""
        means = {f"loss_{name}": total / max(1, self._steps) for name, total in self._sums.items()}
        self._sums, self._steps = {}, 0
        return means

    def numbers(self) -> dict[str, float]:
        """Numbers for a logger; waits for the device. What the last step does not know comes from the last refresh."""
        reports = [report for report in (self.refreshed, self.report) if report is not None]
        return {name: value for report in reports for name, value in numbers(report).items()}


def numbers(report: Report) -> dict[str, float]:
    """Shares of ‖g_aux‖² that are neutral, helpful and harmful (they add up to 1), and how far the tasks agree.

    Shares do not depend on a loss scale. With several auxiliary tasks there are also shares for each task. Waits for the
    device.
    """
    values = report.to_dict()
    prefixes = [""] + [f"{name}/" for name in report.tasks if len(report.tasks) > 1]
    result = {}
    for prefix in prefixes:
        squares = {part: float(values[f"{prefix}{part}"]) ** 2 for part in PARTS}
        total = sum(squares.values())
        for part, square in squares.items():
            result[f"attittud/{prefix}share_{part}"] = square / total if total else 0.0
            if f"{prefix}weight_{part}" in values:  # eta="auto"
                result[f"attittud/{prefix}weight_{part}"] = float(values[f"{prefix}weight_{part}"])
        result[f"attittud/{prefix}agreement"] = float(values[f"{prefix}agreement"])
    for name in ("cosine", "captured_auxiliary", "captured_primary", "effective_rank", "skipped_refreshes"):
        result[f"attittud/{name}"] = float(values[name])
    # A logger that draws curves has no use for unknown values.
    return {name: value for name, value in result.items() if not math.isnan(value)}
