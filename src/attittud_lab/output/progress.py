"""Progress of runs: bars on a terminal, lines elsewhere; and durations in words.

Training, comparisons and the portfolio call the methods of `Progress`. Commands call `display`, which
chooses the class: `Bars` on a terminal, `Lines` elsewhere, `Progress` itself for silence.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from attittud_lab.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

EARLY = (0.8, 2.0)
"""A forecast from a few timed steps: the outcome mostly lies between these multiples of it."""
MEASURED = (0.8, 1.4)
"""A forecast from finished runs: the outcome mostly lies between these multiples of it."""
SILENT = 10.0
"""Seconds after which a line says how far a phase is."""


class Progress:
    """Follows the phases and steps of a run, and the runs of a comparison.

    This base class shows nothing.
    """

    def phase(self, name: str, steps: int | None, done: int) -> None:
        """Begin a phase of this many steps (None: unknown), or continue it after `done` steps."""

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        """Count this many more steps; `values` are the latest figures."""

    def evaluated(self, values: Mapping[str, float]) -> None:
        """Show an evaluation on validation examples."""

    def comparison(self, runs: int) -> None:
        """Plan this many runs, including finished ones.

        It is called again when the number is known better.
        """

    def skipped(self, runs: int) -> None:
        """Count runs that were finished earlier: they say nothing about how long others take."""

    def stage(self, name: str) -> None:
        """Begin a stage, such as the final training: runs are counted from 1 again."""

    def say(self, text: str) -> None:
        """Show a line."""

    def begin(self, what: str) -> Progress:
        """Begin one of the planned runs, and return its own progress, whose `end` finishes it."""
        return self

    def end(self) -> None:
        """Finish a run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def display(noun: str = "run", unit: str = "steps", *, quiet: bool = False) -> Progress:
    """Choose what a command shows: nothing if `quiet`, bars on a terminal, lines elsewhere."""
    if quiet:
        return Progress()
    if sys.stderr.isatty():
        return Bars()
    return Lines(noun, unit)


# -------------------------------------------------------------------------------------------- lines


@dataclass
class Tally:
    """The runs of a stage: how many are planned and finished, and how long one takes."""

    stage: str = ""
    planned: int = 0
    finished: int = 0
    trained: int = 0
    """How many finished runs say how long a run takes."""
    began: float = math.inf
    """When the first of these runs began."""

    def time_left(self, now: float) -> str:
        """Return the time left in words; empty where no run has been timed."""
        if not self.trained or self.finished >= self.planned:
            return ""
        seconds = (now - self.began) / self.trained * (self.planned - self.finished)
        return f", {time_range(seconds, MEASURED)} left"


class Lines(Progress):
    """Lines on standard error: one for each evaluation, and a numbered one for each finished run.

    `noun` is what a run is called, `unit` what a phase counts; lines begin with `prefix`. Of a run
    among others, only the last line has its evaluation.
    """

    def __init__(self, noun: str = "run", unit: str = "steps", prefix: str = "") -> None:
        self.tally = Tally()
        self._opened = time.monotonic()
        self._noun = noun
        self._unit = unit
        self._prefix = prefix
        self._name = ""
        self._figures = ""
        self.phase("", None, 0)

    def comparison(self, runs: int) -> None:
        self.tally.planned = runs

    def skipped(self, runs: int) -> None:
        self.tally.finished += runs

    def stage(self, name: str) -> None:
        self.tally = Tally(f"{name}, ")

    def begin(self, what: str) -> Progress:
        run = copy(self)
        run._name = what
        run.phase("", None, 0)
        self.tally.began = min(self.tally.began, time.monotonic())
        return run

    def say(self, text: str) -> None:
        sys.stderr.write(f"{self._prefix}{text}\n")
        sys.stderr.flush()

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._phase = name
        self._steps = steps
        self._done = done
        self._done_before = done  # in another process, whose time is unknown
        self._began = time.monotonic()
        self._told = self._began

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self._done += steps
        now = time.monotonic()
        pause = max(SILENT, (now - self._began) / 20)  # pauses grow with the phase
        if self._done != self._steps and now - self._told >= pause:
            self._tell()

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._figures = f"validation {_named(values)}"
        if not self._name:
            self._tell(f", {self._figures}")

    def _tell(self, more: str = "") -> None:
        """Say the steps done and the time left."""
        self._told = time.monotonic()
        text = f"{self._phase} {self._done}"
        if self._name:
            text = f"{self._name}: {text}"
        if self._steps is None:
            text += f" {self._unit}"
        else:
            per_step = (self._told - self._began) / max(1, self._done - self._done_before)
            text += f"/{self._steps} {self._unit}"
            if self._done < self._steps:
                left = time_range(per_step * (self._steps - self._done), MEASURED)
                text += f", {left} left"
        self.say(f"{text}{more}")

    def end(self) -> None:
        """Show the numbered line of a finished run, with the seconds so far and the time left."""
        tally = self.tally
        tally.finished += 1
        tally.trained += 1
        now = time.monotonic()
        text = self._name
        if tally.planned:
            left = tally.time_left(now)
            place = f"{tally.stage}{self._noun} {tally.finished} of {tally.planned}{left}"
            text = f"{place}: {text}"
        if self._figures:
            text += f": {self._figures}"
        self.say(f"{now - self._opened:7.1f} s  {text}")


# --------------------------------------------------------------------------------------------- bars


class Bars(Progress):
    """A bar for all runs, and one for each run in progress; lines appear above them.

    The bar of a run has the losses, the three shares and the latest validation figures.
    """

    def __init__(self) -> None:
        self._bars = _rich_bars()
        self._runs = self._bars.add_task("runs", visible=False, figures="")
        self._name = ""
        self._validation = ""
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def comparison(self, runs: int) -> None:
        self._bars.update(self._runs, total=runs, visible=True)

    def skipped(self, runs: int) -> None:
        # The first update of a stage only starts the clock of its pace.
        self._bars.update(self._runs, advance=runs)

    def stage(self, name: str) -> None:
        self._bars.reset(self._runs, description=name)

    def begin(self, what: str) -> Progress:
        run = copy(self)
        run._name = what
        return run

    def phase(self, name: str, steps: int | None, done: int) -> None:
        title = name
        if self._name:  # a run without a name keeps the bars of its earlier phases
            self._remove()
            title = f"{self._name}: {name}"
        self._task = self._bars.add_task(title, total=steps, completed=done, figures="")

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if self._task is not None:
            figures = f"{_figures(values)}{self._validation}"
            self._bars.update(self._task, advance=steps, figures=figures)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._validation = f"  validation {_named(values)}"

    def end(self) -> None:
        self._bars.advance(self._runs)
        self._remove()

    def _remove(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = None


def _rich_bars() -> RichProgress:
    """Return the display on standard error."""
    from rich import progress as rich
    from rich.console import Console
    from rich.table import Column

    console = Console(stderr=True)
    name = Column(no_wrap=True, max_width=console.width * 2 // 5, overflow="ellipsis")
    # On a narrow terminal the end of the line is cut off.
    figures = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return rich.Progress(
        rich.SpinnerColumn(),  # moves in long steps too
        rich.TextColumn("{task.description}", table_column=name),
        rich.BarColumn(bar_width=16),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(compact=True),
        rich.TextColumn("{task.fields[figures]}", table_column=figures),
        console=console,
        expand=True,
        speed_estimate_period=86400,  # a run may take longer than the 30 s that rich looks back
    )


def _named(values: Mapping[str, float]) -> str:
    """Return figures in words, such as "accuracy 0.9000, loss 0.3000"."""
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def shares(values: Mapping[str, float]) -> dict[str, float] | None:
    """Return the shares of the auxiliary gradient's squared norm, from logged norms.

    The share of a part is ‖part‖² / Σ ‖part‖²; None if the norms were not measured.
    """
    squares = {}
    for part in ("helpful", "harmful", "neutral"):
        squares[part] = values.get(f"attittud/{part}", math.nan) ** 2
    total = sum(squares.values())
    if not total > 0:  # NaN too
        return None
    return {part: square / total for part, square in squares.items()}


def _figures(values: Mapping[str, float]) -> str:
    """Return the primary loss, the shares and the auxiliary losses in words."""
    primary = []
    auxiliary = []
    for name, value in values.items():
        if name == "loss/primary":
            primary.append(f"primary {value:.3f}")
        elif name.startswith("loss/"):
            source = name.removeprefix("loss/").removeprefix("auxiliary/")
            auxiliary.append(f"{source} {value:.3f}")
    parts = shares(values) or {}
    middle = [f"{name} {share:.0%}" for name, share in parts.items()]
    return " ".join([*primary, *middle, *auxiliary])


# ---------------------------------------------------------------------------------------- durations

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = "".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in _UNITS)


def parse_duration(text: str, setting: str = "budget") -> float:
    """Return the seconds of a duration as people write it in a setting.

    >>> parse_duration("1h30m"), parse_duration("45")
    (5400.0, 45.0)
    """
    plain = "".join(text.lower().split())
    if re.fullmatch(r"[\d.]+", plain):
        plain += "s"
    match = re.fullmatch(_DURATION, plain)
    seconds = 0.0
    if match:
        for number, size in zip(match.groups("0"), _UNITS.values(), strict=True):
            seconds += float(number) * size
    if not seconds:
        raise InputError(f"{setting}: {text!r} is not a duration; write for example 90s or 1h30m")
    return seconds


def readable(seconds: float) -> str:
    """Return a duration in at most two units.

    >>> readable(0.25), readable(42.3), readable(5400)
    ('0.25 s', '42 s', '1 h 30 min')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 3599.5:
        return _two_units(round(seconds), "min", "s")
    return _two_units(round(seconds / 60), "h", "min")


def _two_units(count: int, large: str, small: str) -> str:
    """Return a number of small units, sixty of which are a large one; `5 min`, not `5 min 0 s`."""
    whole, rest = divmod(count, 60)
    text = f"{whole} {large}"
    if rest:
        text += f" {rest} {small}"
    return text


def readable_range(low: float, high: float) -> str:
    """Return a range of durations, rounded outwards to the unit of its higher end.

    >>> readable_range(170, 290), readable_range(42, 130), readable_range(0.2, 7)
    ('about 2 to 5 min', 'less than 3 min', 'less than 7 s')
    """
    size, unit = 3600, "h"
    if high < 120:
        size, unit = 1, "s"
    elif high < 7200:
        size, unit = 60, "min"
    least = math.floor(low / size)
    most = max(1, math.ceil(high / size))
    if least == 0:
        return f"less than {most} {unit}"
    return f"about {least} to {most} {unit}"


def time_range(seconds: float, factors: tuple[float, float]) -> str:
    """Return a forecast in words; `factors` are EARLY or MEASURED."""
    low, high = factors
    return readable_range(low * seconds, high * seconds)
