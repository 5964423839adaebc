"""Progress of a comparison: on a terminal one bar for all runs and one for the phase of the current run, else lines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attittud_lab.compare.observers import QuietRuns
from attittud_lab.output.progress import Bars

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class Lines(QuietRuns):
    """Where there is no terminal: a line for each run, with the seconds since the first one."""

    def __init__(self, console: Console, worker: str = "") -> None:
        self._console, self._began, self._worker = console, time.monotonic(), worker
        self._last = ""

    def begin(self, what: str) -> None:
        self._console.print(
            f"{self._worker}{time.monotonic() - self._began:7.1f} s  {what}", highlight=False, soft_wrap=True
        )

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._last = ", ".join(f"{name} {value:.3f}" for name, value in values.items())

    def end(self) -> None:
        if self._last:
            self._console.print(f"{self._worker}{'':11}validation {self._last}", highlight=False)
        self._last = ""


class CompareBars(Bars):
    """A run's bar is replaced by the next one's."""

    _runs: TaskID | None = None

    def comparison(self, runs: int) -> None:
        if self._runs is None:
            self._runs = self._bars.add_task("runs", total=runs, figures="")
        self._bars.update(self._runs, total=runs)

    def begin(self, what: str) -> None:
        assert self._runs is not None
        self._bars.update(self._runs, figures=what)
        self._validation = ""

    def end(self) -> None:
        assert self._runs is not None
        self._bars.advance(self._runs)
        self._clear()

    def phase(self, name: str, steps: int, done: int) -> None:
        self._clear()
        super().phase(name, steps, done)

    def _clear(self) -> None:
        for task in self._bars.task_ids:
            if task != self._runs:
                self._bars.remove_task(task)
