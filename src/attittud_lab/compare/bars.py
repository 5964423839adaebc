"""Progress of a comparison: on a terminal one bar for all runs and one for the phase of the current run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attittud_lab.output.progress import Bars

if TYPE_CHECKING:
    from rich.progress import TaskID


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
