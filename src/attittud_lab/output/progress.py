"""Progress of runs: bars on a terminal, lines elsewhere; and durations in words.

Training, comparisons and the portfolio call the methods of `Progress`. Commands call `display`, which
chooses the class: `Bars` on a terminal, `EvaluationLines` or `RunLines` elsewhere, `Progress` itself
for silence.
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
    from rich.console import Console
    from rich.progress import BarColumn, TaskID
    from rich.progress import Progress as RichProgress


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
        """Count runs that were finished earlier.

        They are not left, and say nothing about how long the others take.
        """

    def stage(self, name: str) -> None:
        """Begin a stage, such as the final training of a portfolio: runs are counted from 1
        again.
        """

    def say(self, text: str) -> None:
        """Show a line."""

    def begin(self, what: str) -> None:
        """Begin a run of a comparison."""

    def end(self) -> None:
        """Finish a run of a comparison."""

    def alongside(self, what: str) -> Progress:
        """Begin one of several runs at the same time.

        The returned progress belongs to this run; its `end` finishes it.
        """
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


# -------------------------------------------------------------------------------------------- lines

SILENT = 10.0
"""Seconds without an evaluation after which a line says how far a phase is."""
_INDENT = " " * 11
"""Lines of a run begin under the words of its numbered line, which begins with the seconds."""


class Says(Progress):
    """Shows only lines, such as one for each candidate of a portfolio."""

    def say(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class _Phase:
    """How far a phase is and how long it will take, in words."""

    def __init__(
        self,
        name: str = "",
        steps: int | None = None,
        done: int = 0,
        noun: str = "steps",
    ) -> None:
        self.name = name
        self.steps = steps
        self.done = done
        self.noun = noun
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
            return f"{self.name} {self.done} {self.noun}"
        per_step = (self.told - self.began) / max(1, self.done - self._done_before)
        left = timedelta(seconds=round(per_step * (self.steps - self.done)))
        return f"{self.name} {self.done}/{self.steps} {self.noun}, {left} left"


def _named(values: Mapping[str, float], digits: int) -> str:
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())


class EvaluationLines(Says):
    """A line for each evaluation, or after ten seconds without one.

    It has the steps done, the time left and the figures.
    """

    def __init__(self, noun: str = "steps") -> None:
        self._noun = noun

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._phase = _Phase(name, steps, done, self._noun)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if self._phase.advance(steps):
            self.say(self._phase.words())

    def evaluated(self, values: Mapping[str, float]) -> None:
        self.say(f"{self._phase.words()}, validation {_named(values, 4)}")


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


class RunLines(Progress):
    """A line for each run, with the seconds so far and the time left, and one for each evaluation.

    Evaluations within a second of another line are left out, except the last one of a run. `noun`
    is what a run is called.
    """

    def __init__(self, console: Console, worker: str = "", noun: str = "run") -> None:
        self._console = console
        self._worker = worker
        self._noun = noun
        self._began = time.monotonic()
        self.told = 0.0
        """When the last line was written."""
        self.tally = _Tally()
        self._run = _RunLine(self)

    def comparison(self, runs: int) -> None:
        self.tally.planned = runs

    def skipped(self, runs: int) -> None:
        self.tally.finished += runs

    def stage(self, name: str) -> None:
        self.tally = _Tally(f"{name}, ")

    def say(self, text: str) -> None:
        self.told = time.monotonic()
        self._console.print(f"{self._worker}{text}", highlight=False, markup=False, soft_wrap=True)

    def begin(self, what: str) -> None:
        self.count(self.tally.finished + 1, what)
        self._run = _RunLine(self)

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._run.phase(name, steps, done)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self._run.advance(steps, values)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._run.evaluated(values)

    def end(self) -> None:
        self.tally.finish(trained=self._run.trained)
        if self._run.unsaid:
            self.say(f"{_INDENT}{self._run.unsaid}")

    def alongside(self, what: str) -> Progress:
        return _RunLine(self, what)

    def count(self, number: int, what: str) -> None:
        """Show a line with the number of a run among all."""
        now = time.monotonic()
        place = ""
        if self.tally.planned:
            left = self.tally.time_left(now)
            place = f"{self.tally.name}{self._noun} {number} of {self.tally.planned}{left}: "
        self.say(f"{now - self._began:7.1f} s  {place}{what}")


class _RunLine(Progress):
    """The lines of one run.

    It is the only current run, or one of several at the same time, which then has a name (`what`)
    in its lines and a numbered line at its end.
    """

    def __init__(self, lines: RunLines, what: str = "") -> None:
        self._lines = lines
        self._what = what
        self._phase = _Phase()
        self.trained = False
        self.say = lines.say  # type: ignore[method-assign]  # the same line
        self.unsaid = ""
        """The last figures, if no line has them."""

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._phase = _Phase(name, steps, done)
        self.trained = True
        self._lines.tally.began(self._phase.began)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if self._phase.advance(steps):
            self._tell(self._phase.words())

    def evaluated(self, values: Mapping[str, float]) -> None:
        self.unsaid = f"validation {_named(values, 3)}"
        crowded = time.monotonic() - self._lines.told < 1
        if crowded or not self._phase.name:
            return
        self._tell(f"{self._phase.words()}, {self.unsaid}")
        if not self._what:  # a named run repeats its last figures at its end
            self.unsaid = ""

    def _tell(self, text: str) -> None:
        name = f"{self._what}: " if self._what else ""
        self.say(f"{_INDENT}{name}{text}")

    def end(self) -> None:
        number = self._lines.tally.finish(trained=self.trained)
        figures = f": {self.unsaid}" if self.unsaid else ""
        self._lines.count(number, f"{self._what}{figures}")


# --------------------------------------------------------------------------------------------- bars

_WIDE = 100
"""Columns of a terminal on which the shares fit next to a bar of 20 cells."""


def _rich_bars() -> tuple[RichProgress, BarColumn]:
    """Return the display on standard error, and its column with the bar."""
    from rich import progress as rich
    from rich.console import Console
    from rich.table import Column

    console = Console(stderr=True)
    bar = rich.BarColumn(bar_width=20 if console.width >= _WIDE else 16)
    widest_name = max(8, console.width * 2 // 5)
    name = Column(no_wrap=True, min_width=8, max_width=widest_name, overflow="ellipsis")
    # On a narrow terminal the end of the line is cut off.
    figures = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    shown = rich.Progress(
        rich.SpinnerColumn(),  # moves in long steps too
        rich.TextColumn("{task.description}", table_column=name),
        bar,
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(compact=True),
        rich.TextColumn("{task.fields[figures]}", table_column=figures),
        console=console,
        expand=True,
        speed_estimate_period=86400,  # a run may take longer than the 30 s that rich looks back
    )
    return shown, bar


class _Display(Progress):
    """A display of bars while it is entered, with lines above them."""

    def __init__(self) -> None:
        self._bars, self._column = _rich_bars()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)


class Bars(_Display):
    """A bar for each phase, with the losses, the three shares and the latest validation figure.

    A comparison has a bar for all runs, and a bar for the current phase, which the next phase
    replaces.
    """

    def __init__(self) -> None:
        super().__init__()
        self._validation = ""
        self._runs = self._bars.add_task("runs", visible=False, figures="")

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._clear()
        self._task = self._bars.add_task(name, total=steps, completed=done, figures="")

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if shares(values) and self._bars.console.width < _WIDE:
            self._column.bar_width = 5  # the shares need the room
        self._bars.update(self._task, advance=steps, figures=_figures(values) + self._validation)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._validation = _validation(values)

    def comparison(self, runs: int) -> None:
        self._bars.update(self._runs, total=runs, visible=True)

    def skipped(self, runs: int) -> None:
        # The first update of a stage only starts the clock of its pace.
        self._bars.update(self._runs, advance=runs)

    def stage(self, name: str) -> None:
        self._bars.reset(self._runs, description=name)

    def begin(self, what: str) -> None:
        self._bars.update(self._runs, figures=what)
        self._validation = ""

    def end(self) -> None:
        self._bars.advance(self._runs)
        self._clear()

    def _clear(self) -> None:
        """Remove the bars of phases, if there is a bar for all runs."""
        runs, *phases = self._bars.tasks
        if runs.visible:
            for task in phases:
                self._bars.remove_task(task.id)

    def alongside(self, what: str) -> Progress:
        return _RunBar(self, self._bars, self._runs, what)


def display(lines: Progress, *, quiet: bool = False) -> Progress:
    """Choose what a command shows: nothing if `quiet`, bars on a terminal, `lines` elsewhere."""
    if quiet:
        return Progress()
    return Bars() if sys.stderr.isatty() else lines


class _RunBar(Progress):
    """One of several runs at the same time, with a bar of its own while it is trained."""

    def __init__(self, bars: Bars, shown: RichProgress, runs: TaskID, what: str) -> None:
        self._bars = shown
        self._runs = runs
        self._what = what
        self._validation = ""
        self._task: TaskID | None = None
        self.say = bars.say  # type: ignore[method-assign]  # above all bars

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._remove()
        title = f"{self._what}: {name}"
        self._task = self._bars.add_task(title, total=steps, completed=done, figures="")

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if self._task is not None:
            figures = _figures(values) + self._validation
            self._bars.update(self._task, advance=steps, figures=figures)

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


def _validation(values: Mapping[str, float]) -> str:
    words = [f"{name} {value:.3f}" for name, value in values.items()]
    return "  validation " + " ".join(words)


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
