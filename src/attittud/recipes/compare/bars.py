"""Progress of a comparison on a terminal: one bar for all runs, one for the phase of the current run."""

from __future__ import annotations

from attittud.recipes.progress import Bars


class CompareBars(Bars):
    """A run's bar is replaced by the next one's."""

    def comparison(self, runs: int) -> None:
        self._runs = self._bars.add_task("runs", total=runs, figures="")

    def begin(self, what: str) -> None:
        self._bars.update(self._runs, figures=what)
        self._validation = ""

    def end(self) -> None:
        self._bars.advance(self._runs)
        self._clear()

    def phase(self, name: str, steps: int, done: int) -> None:
        self._clear()
        super().phase(name, steps, done)

    def _clear(self) -> None:
        for task in self._bars.task_ids:
            if task != self._runs:
                self._bars.remove_task(task)
