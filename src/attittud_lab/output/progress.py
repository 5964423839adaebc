"""What a person sees while a run goes on: a bar on a terminal, elsewhere a line for each evaluation."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Self


class Progress:
    """Is told about phases and steps. This one says nothing."""

    def phase(self, name: str, steps: int, done: int) -> None:
        """A phase of so many steps begins, or goes on after `done` of them."""

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        """So many more steps are done; `values` are the latest figures."""

    def evaluated(self, values: Mapping[str, float]) -> None:
        """The model was evaluated on validation examples."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class EvaluationLines(Progress):
    """A line for each evaluation: how far the phase is, how long the rest of it will take, and the figures."""

    def phase(self, name: str, steps: int, done: int) -> None:
        self._name, self._steps, self._done = name, steps, done
        self._before, self._began = done, time.monotonic()

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self._done += steps

    def evaluated(self, values: Mapping[str, float]) -> None:
        per_step = (time.monotonic() - self._began) / max(1, self._done - self._before)
        left = timedelta(seconds=round(per_step * (self._steps - self._done)))
        figures = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        sys.stderr.write(f"{self._name} {self._done}/{self._steps} steps, {left} left, validation {figures}\n")
        sys.stderr.flush()


def shares(values: Mapping[str, float]) -> dict[str, float] | None:
    """Shares of the squared norm of the auxiliary gradient, from logged norms; None where they were not measured."""
    squares = {part: values.get(f"attittud/{part}", math.nan) ** 2 for part in ("helpful", "harmful", "neutral")}
    total = sum(squares.values())
    return {part: square / total for part, square in squares.items()} if total > 0 else None


class Bars(Progress):
    """A bar with the losses, the three shares and the latest validation figure; use it in a `with` block."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        console = Console(stderr=True)
        self._bars = RichProgress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=8)),
            BarColumn(bar_width=20 if console.width > 120 else 4),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            # What a narrow terminal has no room for is cut off at its end.
            TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            expand=True,
        )
        self._validation = ""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def phase(self, name: str, steps: int, done: int) -> None:
        self._task = self._bars.add_task(name, total=steps, completed=done, figures="")

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self._bars.update(self._task, advance=steps, figures=_figures(values) + self._validation)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._validation = "  validation " + " ".join(f"{name} {value:.3f}" for name, value in values.items())


def _figures(values: Mapping[str, float]) -> str:
    losses = {name.removeprefix("loss/"): value for name, value in values.items() if name.startswith("loss/")}
    words = [f"{name} {value:.3f}" for name, value in losses.items() if name == "primary"]
    words += [f"{name} {share:.0%}" for name, share in (shares(values) or {}).items()]
    words += [f"{name.removeprefix('auxiliary/')} {value:.3f}" for name, value in losses.items() if name != "primary"]
    return " ".join(words)
