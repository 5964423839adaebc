"""What a person sees of a comparison while it goes on: how long it will take, bars on a terminal, lines elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING

from attittud_lab.errors import InputError
from attittud_lab.output.progress import Bars, Progress

if TYPE_CHECKING:
    from rich.console import Console


class Runs(Progress):
    """Is told about the runs of a comparison, as well as about each run's steps. This one says nothing."""

    def comparison(self, runs: int) -> None:
        """So many runs are planned, finished ones among them; called again when it is known better."""

    def say(self, text: str) -> None:
        """Show a line."""

    def begin(self, what: str) -> None:
        """A run begins."""

    def end(self) -> None:
        """It is finished."""


class Lines(Runs):
    """Lines for each run, with the seconds since the first one, where there is no terminal."""

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


class CompareBars(Bars, Runs):
    """One bar for all runs, and one for the phase of the current run, which the next one replaces."""

    def __init__(self) -> None:
        super().__init__()
        self._runs = self._bars.add_task("runs", total=None, figures="")

    def comparison(self, runs: int) -> None:
        self._bars.update(self._runs, total=runs)

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

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


class Forecast(Progress):
    """Times the runs that are trained, and says how long the others will take.

    It does so after the first steps, and again when every strategy has been run once.
    """

    def __init__(self, progress: Runs, labels: Iterable[str], steps: int, at_budget: tuple[int, float | None]) -> None:
        """`steps` are those of a run, `at_budget` how many runs are the last ones, at equal seconds, and these if given."""
        self._progress, self._untimed, self._steps, self._at_budget = progress, set(labels), steps, at_budget
        self._label, self._runs, self._left, self._told = "", 0, 0, False
        self._seconds: list[float] = []
        self._warm: float | None = None

    def plan(self, runs: int) -> None:
        """So many runs are planned, finished ones among them."""
        self._runs = runs
        self._progress.comparison(runs)

    @contextmanager
    def timed(self, label: str, done: int) -> Iterator[Progress]:
        """A run of this strategy is trained inside, after so many others."""
        self._label, self._left, began = label, self._runs - done, time.monotonic()
        yield self
        self._left, seconds = self._left - 1, time.monotonic() - began
        if label in self._untimed:
            self._untimed.remove(label)
            self._seconds.append(seconds)
            if not self._untimed:
                self._tell(fmean(self._seconds), "now that every strategy has been run once")
        if not self._told:
            self._tell(seconds, f"if all are like this one of {label}; the next forecast knows all strategies")

    def _tell(self, seconds: float, reason: str) -> None:
        self._told = True
        at_budget = min(self._left, self._at_budget[0])
        total = (self._left - at_budget) * seconds + at_budget * (self._at_budget[1] or seconds)
        if total > 0:
            self._progress.say(f"Forecast: about {readable(total)} for the {self._left} runs that are left, {reason}.")

    def phase(self, name: str, steps: int, done: int) -> None:
        self._warm = None
        self._progress.phase(name, steps, done)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self._progress.advance(steps, values)
        now = time.monotonic()
        if not self._told and self._warm is not None:
            step = (now - self._warm) / steps
            text = f"as a step of {self._label} takes {step:.2g} s; the next forecast knows all strategies"
            self._tell(step * self._steps, text)
        self._warm = now  # the first steps, in which much is set up, do not count

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._progress.evaluated(values)


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
        raise InputError(f"budget: {text!r} is no duration; write for example 90s, 30m, 2h or 1h30m")
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
