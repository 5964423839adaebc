"""Progress of runs: bars on a terminal, lines elsewhere; and durations in words."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from attittud_lab.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress:
    """Follows the phases and steps of a run, and the runs of a comparison. This base class shows nothing."""

    def phase(self, name: str, steps: int, done: int) -> None:
        """A phase of this many steps begins, or continues after `done` steps."""

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        """This many more steps are done; `values` are the latest figures."""

    def evaluated(self, values: Mapping[str, float]) -> None:
        """The model was evaluated on validation examples."""

    def comparison(self, runs: int) -> None:
        """This many runs are planned, including finished ones; called again when the number is known better."""

    def say(self, text: str) -> None:
        """Show a line."""

    def begin(self, what: str) -> None:
        """A run of a comparison begins."""

    def end(self) -> None:
        """A run of a comparison is finished."""

    def alongside(self, what: str) -> Progress:
        """The progress of one of several runs that take place at the same time, instead of `begin`; `end` ends it."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Says(Progress):
    """Only what is said: a line for each rung of a portfolio."""

    def say(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class EvaluationLines(Progress):
    """A line for each evaluation: steps done, time left and the figures."""

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


class RunLines(Progress):
    """Lines for each run of a comparison, with the seconds since the first run."""

    def __init__(self, console: Console, worker: str = "") -> None:
        self._console, self._began, self._worker = console, time.monotonic(), worker
        self._last, self._planned, self._number = "", 0, 0

    def comparison(self, runs: int) -> None:
        self._planned = runs

    def say(self, text: str) -> None:
        self._console.print(f"{self._worker}{text}", highlight=False, markup=False, soft_wrap=True)

    def begin(self, what: str) -> None:
        self._number += 1
        number = f"run {self._number} of {self._planned}: " if self._planned else ""
        self.say(f"{time.monotonic() - self._began:7.1f} s  {number}{what}")

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._last = ", ".join(f"{name} {value:.3f}" for name, value in values.items())

    def end(self) -> None:
        if self._last:
            self.say(f"{'':11}validation {self._last}")
        self._last = ""

    def alongside(self, what: str) -> Progress:
        return _RunLine(self, what)

    def ended(self, what: str, figures: str) -> None:
        """One of several runs is finished."""
        self.begin(f"{what}: validation {figures}" if figures else what)


class _RunLine(Progress):
    """One of several runs at the same time, with a line when it is finished."""

    def __init__(self, lines: RunLines, what: str) -> None:
        self._lines, self._what, self._last = lines, what, ""
        self.say = lines.say  # type: ignore[method-assign]  # the same line

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._last = ", ".join(f"{name} {value:.3f}" for name, value in values.items())

    def end(self) -> None:
        self._lines.ended(self._what, self._last)


class Bars(Progress):
    """A bar for each phase, with the losses, the three shares and the latest validation figure.

    A comparison has a bar for all runs, and a bar for the current phase, which the next phase replaces.
    """

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
            # On a narrow terminal the end of the line is cut off.
            TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            expand=True,
        )
        self._validation = ""
        self._runs = self._bars.add_task("runs", visible=False, figures="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def phase(self, name: str, steps: int | None, done: int) -> None:
        """`steps` may also be unknown."""
        self._clear()
        self._task = self._bars.add_task(name, total=steps, completed=done, figures="")

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self._bars.update(self._task, advance=steps, figures=_figures(values) + self._validation)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._validation = _validation(values)

    def comparison(self, runs: int) -> None:
        self._bars.update(self._runs, total=runs, visible=True)

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def begin(self, what: str) -> None:
        self._bars.update(self._runs, figures=what)
        self._validation = ""

    def end(self) -> None:
        self._bars.advance(self._runs)
        self._clear()

    def _clear(self) -> None:
        runs, *others = self._bars.tasks
        for task in others if runs.visible else ():
            self._bars.remove_task(task.id)

    def alongside(self, what: str) -> Progress:
        return _RunBar(self, self._bars, self._runs, what)


class _RunBar(Progress):
    """One of several runs at the same time, with a bar of its own while it is trained."""

    def __init__(self, bars: Bars, shown: RichProgress, runs: TaskID, what: str) -> None:
        self._bars, self._runs, self._what, self._validation = shown, runs, what, ""
        self._task: TaskID | None = None
        self.say = bars.say  # type: ignore[method-assign]  # above all bars

    def phase(self, name: str, steps: int, done: int) -> None:
        self._remove()
        self._task = self._bars.add_task(f"{self._what}: {name}", total=steps, completed=done, figures="")

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if self._task is not None:
            self._bars.update(self._task, advance=steps, figures=_figures(values) + self._validation)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._validation = _validation(values)

    def end(self) -> None:
        self._bars.advance(self._runs)
        self._remove()

    def _remove(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = None


def shares(values: Mapping[str, float]) -> dict[str, float] | None:
    """Shares of the squared norm of the auxiliary gradient, from logged norms; None where they were not measured."""
    squares = {part: values.get(f"attittud/{part}", math.nan) ** 2 for part in ("helpful", "harmful", "neutral")}
    total = sum(squares.values())
    return {part: square / total for part, square in squares.items()} if total > 0 else None


def _validation(values: Mapping[str, float]) -> str:
    return "  validation " + " ".join(f"{name} {value:.3f}" for name, value in values.items())


def _figures(values: Mapping[str, float]) -> str:
    losses = {name.removeprefix("loss/"): value for name, value in values.items() if name.startswith("loss/")}
    words = [f"{name} {value:.3f}" for name, value in losses.items() if name == "primary"]
    words += [f"{name} {share:.0%}" for name, share in (shares(values) or {}).items()]
    words += [f"{name.removeprefix('auxiliary/')} {value:.3f}" for name, value in losses.items() if name != "primary"]
    return " ".join(words)


_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = r"(\d+(?:\.\d+)?)\s*([dhms])\s*"


def parse_duration(text: str) -> float:
    """Seconds from a duration as people write it.

    >>> parse_duration("1h30m"), parse_duration("45")
    (5400.0, 45.0)
    """
    plain = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        plain += "s"
    parts = re.findall(_PART, plain)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not re.fullmatch(f"({_PART})+", plain) or len({unit for _, unit in parts}) < len(parts) or not seconds > 0:
        raise InputError(f"budget: {text!r} is not a duration; write for example 90s, 30m, 2h or 1h30m")
    return seconds


def readable(seconds: float) -> str:
    """A duration in at most two units.

    >>> readable(0.25), readable(42.3), readable(5400)
    ('0.25 s', '42 s', '1 h 30 min')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    first, second = ("min", "s") if whole < 3600 else ("h", "min")
    large, small = divmod(whole if whole < 3600 else round(whole / 60), 60)
    return f"{large} {first} {small} {second}" if small else f"{large} {first}"
