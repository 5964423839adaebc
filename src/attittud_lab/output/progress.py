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

    def phase(self, name: str, steps: int | None, done: int) -> None:
        """Begin a phase of this many steps (None: unknown), or continue it after `done` steps."""

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        """Count this many more steps; `values` are the latest figures."""

    def evaluated(self, values: Mapping[str, float]) -> None:
        """Show an evaluation on validation examples."""

    def comparison(self, runs: int) -> None:
        """Plan this many runs, including finished ones; called again when the number is known better."""

    def skipped(self, runs: int) -> None:
        """Count runs that were finished earlier: they are not left, and say nothing about how long the others take."""

    def stage(self, name: str, left: str = "") -> None:
        """Begin a stage, such as a rung of a portfolio: runs are counted from 1 again. `left` follows the time that is left."""

    def say(self, text: str) -> None:
        """Show a line."""

    def begin(self, what: str) -> None:
        """Begin a run of a comparison."""

    def end(self) -> None:
        """Finish a run of a comparison."""

    def alongside(self, what: str) -> Progress:
        """Begin one of several runs at the same time and return its own progress, whose `end` finishes it."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


SILENT = 10.0
"""Seconds without an evaluation after which a line says how far a phase is."""


class Says(Progress):
    """Shows only lines, such as one for each rung of a portfolio."""

    def say(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class _Phase:
    """How far a phase is and how long it will take, in words."""

    def __init__(self, name: str = "", steps: int | None = None, done: int = 0, noun: str = "steps") -> None:
        self.name, self.steps, self.done, self.noun, self._before = name, steps, done, noun, done
        self.began = self.told = time.monotonic()

    def advance(self, steps: int) -> bool:
        """Count steps; True if a line is due because nothing was shown for long. Pauses grow with the phase."""
        self.done += steps
        now = time.monotonic()
        return self.done != self.steps and now - self.told >= max(SILENT, (now - self.began) / 20)

    def words(self) -> str:
        self.told = time.monotonic()
        if self.steps is None:
            return f"{self.name} {self.done} {self.noun}"
        per_step = (self.told - self.began) / max(1, self.done - self._before)
        left = timedelta(seconds=round(per_step * (self.steps - self.done)))
        return f"{self.name} {self.done}/{self.steps} {self.noun}, {left} left"


def _named(values: Mapping[str, float], digits: int) -> str:
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())


class EvaluationLines(Says):
    """A line for each evaluation, or after ten seconds without one: steps done, time left and the figures."""

    def __init__(self, noun: str = "steps") -> None:
        self._noun = noun

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._phase = _Phase(name, steps, done, self._noun)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if self._phase.advance(steps):
            self.say(self._phase.words())

    def evaluated(self, values: Mapping[str, float]) -> None:
        self.say(f"{self._phase.words()}, validation {_named(values, 4)}")


class RunLines(Progress):
    """Shows a line for each run, with the seconds so far and the time left, and a line for each evaluation in it.

    Evaluations within a second of another line are left out, except the last one of a run. `noun` is what a run is called.
    """

    def __init__(self, console: Console, worker: str = "", noun: str = "run") -> None:
        self._console, self._began, self._worker = console, time.monotonic(), worker
        self._noun, self._stage, self._left, self._told = noun, "", "", 0.0
        self._planned = self._finished = self._trained = 0
        self.since = math.inf
        """When the first run of the stage that had to be trained began."""
        self._run = _RunLine(self)

    def comparison(self, runs: int) -> None:
        self._planned = runs

    def skipped(self, runs: int) -> None:
        self._finished += runs

    def stage(self, name: str, left: str = "") -> None:
        self._stage, self._left = f"{name}, ", f" {left}" if left else ""
        self._planned = self._finished = self._trained = 0
        self.since = math.inf

    def say(self, text: str) -> None:
        self._told = time.monotonic()
        self._console.print(f"{self._worker}{text}", highlight=False, markup=False, soft_wrap=True)

    def begin(self, what: str) -> None:
        self.count(self._finished + 1, what)
        self._run = _RunLine(self)

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._run.phase(name, steps, done)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self._run.advance(steps, values)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._run.evaluated(values)

    def end(self) -> None:
        self.finish(trained=self._run.trained)
        if self._run.unsaid:
            self.say(f"{'':11}{self._run.unsaid}")

    def alongside(self, what: str) -> Progress:
        return _RunLine(self, what)

    def finish(self, *, trained: bool) -> int:
        """Count a finished run; only a run that was `trained` now says how long the others take."""
        self._finished += 1
        self._trained += trained
        return self._finished

    def count(self, number: int, what: str) -> None:
        """Show a line with the number of a run among all."""
        now, of = time.monotonic(), ""
        if self._planned:
            left = (now - self.since) / max(1, self._trained) * (self._planned - self._finished)
            known = f", about {readable(left)} left{self._left}" if self._trained and left else ""
            of = f"{self._stage}{self._noun} {number} of {self._planned}{known}: "
        self.say(f"{now - self._began:7.1f} s  {of}{what}")

    @property
    def crowded(self) -> bool:
        """Whether a line has just been written."""
        return time.monotonic() - self._told < 1


class _RunLine(Progress):
    """The lines of one run: the current one, or a named one of several at the same time, whose line comes at its end."""

    def __init__(self, lines: RunLines, what: str = "") -> None:
        self._lines, self._what, self._phase, self.trained = lines, what, _Phase(), False
        self.say = lines.say  # type: ignore[method-assign]  # the same line
        self.unsaid = ""
        """The last figures, if no line has them."""

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._phase, self.trained = _Phase(name, steps, done), True
        self._lines.since = min(self._lines.since, self._phase.began)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if self._phase.advance(steps):
            self._tell(self._phase.words())

    def evaluated(self, values: Mapping[str, float]) -> None:
        self.unsaid = f"validation {_named(values, 3)}"
        if not self._lines.crowded and self._phase.name:
            self._tell(f"{self._phase.words()}, {self.unsaid}")
            self.unsaid = "" if not self._what else self.unsaid

    def _tell(self, text: str) -> None:
        self.say(f"{'':11}{self._what}: {text}" if self._what else f"{'':11}{text}")

    def end(self) -> None:
        number = self._lines.finish(trained=self.trained)
        self._lines.count(number, f"{self._what}: {self.unsaid}" if self.unsaid else self._what)


_WIDE = 100
"""Columns of a terminal on which the shares fit next to a bar of 20 cells."""


class Bars(Progress):
    """A bar for each phase, with the losses, the three shares and the latest validation figure.

    A comparison has a bar for all runs, and a bar for the current phase, which the next phase replaces.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        console = Console(stderr=True)
        self._bar = BarColumn(bar_width=20 if console.width >= _WIDE else 16)
        name = Column(no_wrap=True, min_width=8, max_width=max(8, console.width * 2 // 5), overflow="ellipsis")
        self._bars = RichProgress(
            SpinnerColumn(),  # moves in long steps too
            TextColumn("{task.description}", table_column=name),
            self._bar,
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            # On a narrow terminal the end of the line is cut off.
            TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            expand=True,
            speed_estimate_period=86400,  # a run may take longer than the 30 s that rich looks back
        )
        self._validation = ""
        self._runs = self._bars.add_task("runs", visible=False, figures="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._clear()
        self._task = self._bars.add_task(name, total=steps, completed=done, figures="")

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        if shares(values) and self._bars.console.width < _WIDE:
            self._bar.bar_width = 5  # the shares need the room
        self._bars.update(self._task, advance=steps, figures=_figures(values) + self._validation)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._validation = _validation(values)

    def comparison(self, runs: int) -> None:
        self._bars.update(self._runs, total=runs, visible=True)

    def skipped(self, runs: int) -> None:
        # The first update of a stage only starts the clock of its pace.
        self._bars.update(self._runs, advance=runs)

    def stage(self, name: str, left: str = "") -> None:
        self._bars.reset(self._runs, description=name)

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

    def phase(self, name: str, steps: int | None, done: int) -> None:
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
    """Return the shares of the auxiliary gradient's squared norm, from logged norms; None if they were not measured."""
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
