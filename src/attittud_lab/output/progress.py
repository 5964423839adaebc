"""Progress of runs: bars on a terminal, lines elsewhere; and durations in words.

Training, comparisons and the portfolio call the methods of `Progress`. Commands call `display`, which
chooses the class: `Bars` on a terminal, `Lines` elsewhere, `Progress` itself for silence.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from attittud_lab.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


EARLY = (0.8, 2.0)
"""A forecast from a few timed steps: the outcome mostly lies between these multiples of it."""
MEASURED = (0.8, 1.4)
"""A forecast from finished runs: the outcome mostly lies between these multiples of it."""


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


def display(lines: Lines, *, quiet: bool = False) -> Progress:
    """Choose what a command shows: nothing if `quiet`, bars on a terminal, `lines` elsewhere."""
    if quiet:
        return Progress()
    return Bars() if sys.stderr.isatty() else lines


class _Display(Progress):
    """Shows several runs. Its own phases are those of a run without a name."""

    alone: Progress

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self.alone.phase(name, steps, done)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self.alone.advance(steps, values)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self.alone.evaluated(values)


# -------------------------------------------------------------------------------------------- lines

SILENT = 10.0
"""Seconds without an evaluation after which a line says how far a phase is."""


class Lines(_Display):
    """Lines on standard error: one for each evaluation, and a numbered one for each finished run.

    `noun` is what a run is called, `unit` what a phase counts; lines begin with `prefix`.
    """

    def __init__(self, noun: str = "run", unit: str = "steps", prefix: str = "") -> None:
        self.unit = unit
        self.last_line = -math.inf
        self.tally = _Tally()
        self.alone = _RunLines(self, "")
        self._noun = noun
        self._prefix = prefix
        self._began = time.monotonic()

    def comparison(self, runs: int) -> None:
        self.tally.planned = runs

    def skipped(self, runs: int) -> None:
        self.tally.finished += runs

    def stage(self, name: str) -> None:
        self.tally = _Tally(f"{name}, ")

    def say(self, text: str) -> None:
        self.last_line = time.monotonic()
        sys.stderr.write(f"{self._prefix}{text}\n")
        sys.stderr.flush()

    def begin(self, what: str) -> Progress:
        return _RunLines(self, what)

    def finish(self, what: str, *, trained: bool) -> None:
        """Show the numbered line of a finished run, with the seconds so far and the time left."""
        number = self.tally.finish(trained=trained)
        now = time.monotonic()
        place = ""
        if self.tally.planned:
            left = self.tally.time_left(now)
            place = f"{self.tally.name}{self._noun} {number} of {self.tally.planned}{left}: "
        self.say(f"{now - self._began:7.1f} s  {place}{what}")


class _RunLines(Progress):
    """The lines of one run, which begin with its name."""

    def __init__(self, lines: Lines, name: str) -> None:
        self._lines = lines
        self._name = name
        self._phase: _Phase | None = None
        self._figures = ""
        """The last evaluation."""

    def say(self, text: str) -> None:
        self._lines.say(f"{self._name}: {text}" if self._name else text)

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._phase = _Phase(name, steps, done, self._lines.unit)
        self._lines.tally.began(self._phase.began)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if self._phase is not None and self._phase.advance(steps):
            self.say(self._phase.words())

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._figures = f"validation {_named(values)}"
        # Many quick runs would fill the screen; the last line of a named run repeats its figures.
        crowded = self._name and time.monotonic() - self._lines.last_line < 1
        if self._phase is not None and not crowded:
            self.say(f"{self._phase.words()}, {self._figures}")

    def end(self) -> None:
        what = self._name
        if self._figures:
            what = f"{self._name}: {self._figures}"
        self._lines.finish(what, trained=self._phase is not None)


class _Phase:
    """How far a phase is and how long it will take, in words."""

    def __init__(self, name: str, steps: int | None, done: int, unit: str) -> None:
        self.name = name
        self.steps = steps
        self.done = done
        self.unit = unit
        self._done_before = done  # in another process, whose time is unknown
        self.began = time.monotonic()
        self.told = self.began

    def advance(self, steps: int) -> bool:
        """Count steps; True if a line is due because nothing was shown for long.

        Pauses grow with the phase.
        """
        self.done += steps
        now = time.monotonic()
        pause = max(SILENT, (now - self.began) / 20)
        return self.done != self.steps and now - self.told >= pause

    def words(self) -> str:
        """Return the steps done and the time left."""
        self.told = time.monotonic()
        if self.steps is None:
            return f"{self.name} {self.done} {self.unit}"
        per_step = (self.told - self.began) / max(1, self.done - self._done_before)
        left = timedelta(seconds=round(per_step * (self.steps - self.done)))
        return f"{self.name} {self.done}/{self.steps} {self.unit}, {left} left"


class _Tally:
    """The runs of a stage: how many are planned and finished, and how long one takes."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.planned = 0
        self.finished = 0
        self._trained = 0
        self._since = math.inf
        """When the first run that had to be trained began."""

    def began(self, moment: float) -> None:
        """Note that a run is trained since `moment`."""
        self._since = min(self._since, moment)

    def finish(self, *, trained: bool) -> int:
        """Count a finished run and return its number.

        Only a run that was `trained` now says how long the others take.
        """
        self.finished += 1
        self._trained += trained
        return self.finished

    def time_left(self, now: float) -> str:
        """Return the time left in words; empty where no run has been timed."""
        if not self._trained:
            return ""
        each = (now - self._since) / self._trained
        seconds = each * (self.planned - self.finished)
        if not seconds:
            return ""
        return f", {time_range(seconds, MEASURED)} left"


# --------------------------------------------------------------------------------------------- bars


class Bars(_Display):
    """A bar for all runs, and one for each run in progress; lines appear above them."""

    def __init__(self) -> None:
        self.bars = _rich_bars()
        self.runs = self.bars.add_task("runs", visible=False, figures="")
        self.alone = _RunBar(self, "")

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def say(self, text: str) -> None:
        self.bars.console.print(text, highlight=False, markup=False)

    def comparison(self, runs: int) -> None:
        self.bars.update(self.runs, total=runs, visible=True)

    def skipped(self, runs: int) -> None:
        # The first update of a stage only starts the clock of its pace.
        self.bars.update(self.runs, advance=runs)

    def stage(self, name: str) -> None:
        self.bars.reset(self.runs, description=name)

    def begin(self, what: str) -> Progress:
        return _RunBar(self, what)


class _RunBar(Progress):
    """The bar of one run: the losses, the three shares and the latest validation figures."""

    def __init__(self, bars: Bars, name: str) -> None:
        self._all = bars
        self._bars = bars.bars
        self._name = name
        self._validation = ""
        self._task: TaskID | None = None

    def say(self, text: str) -> None:
        self._all.say(text)

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
        self._bars.advance(self._all.runs)
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

_GRAINS = ((10, 1), (60, 5), (120, 10), (1200, 60), (7200, 300), (math.inf, 1800))
"""Up to how many seconds a range is rounded to how many."""
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = r"(\d+(?:\.\d+)?)\s*([dhms])\s*"


def parse_duration(text: str) -> float:
    """Return the seconds of a duration as people write it.

    >>> parse_duration("1h30m"), parse_duration("45")
    (5400.0, 45.0)
    """
    plain = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        plain += "s"
    parts = re.findall(_PART, plain)
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    whole = re.fullmatch(f"({_PART})+", plain)
    units = {unit for _, unit in parts}
    if not whole or len(units) < len(parts) or not seconds > 0:
        example = "write for example 90s, 30m, 2h or 1h30m"
        raise InputError(f"budget: {text!r} is not a duration; {example}")
    return seconds


def readable(seconds: float) -> str:
    """Return a duration in at most two units.

    >>> readable(0.25), readable(42.3), readable(5400)
    ('0.25 s', '42 s', '1 h 30 min')
    """
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 3600:
        return _two_units(whole, "min", "s")
    return _two_units(round(whole / 60), "h", "min")


def readable_range(low: float, high: float) -> str:
    """Return a range of durations, rounded outwards, which follows "about" or begins with it.

    >>> readable_range(170, 290), readable_range(42, 130), readable_range(0.2, 7)
    ('about 2 to 5 min', 'about 40 s to 3 min', 'less than 7 s')
    """
    least = _rounded(low, math.floor)
    most = max(1, _rounded(high, math.ceil))
    if least == 0:
        return f"less than {readable(most)}"
    if least == most:
        return f"about {readable(most)}"
    first, last = readable(least), readable(most)
    number, *units = first.split()
    if len(units) == 1 and last.split()[1:] == units:
        first = number
    return f"about {first} to {last}"


def time_range(seconds: float, factors: tuple[float, float]) -> str:
    """Return a forecast in words; `factors` are EARLY or MEASURED."""
    low, high = factors
    return readable_range(low * seconds, high * seconds)


def _rounded(seconds: float, to_whole: Callable[[float], int]) -> int:
    """Round seconds to what is worth saying about a time that is not known exactly."""
    grain = next(grain for below, grain in _GRAINS if seconds < below)
    return to_whole(seconds / grain) * grain


def _two_units(count: int, large_unit: str, small_unit: str) -> str:
    """Return a count of the small unit in both units; 60 of the small are one large."""
    large, small = divmod(count, 60)
    if not small:
        return f"{large} {large_unit}"
    return f"{large} {large_unit} {small} {small_unit}"
