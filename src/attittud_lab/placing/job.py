"""Independent jobs, and the interface behind which they run: in this process, other processes, or other machines.

A job is a function of a module, so that any process can import it, with small arguments. It reads and writes files only in
its own folder. The place where it runs changes neither its result nor its files.
"""

from __future__ import annotations

import logging
import math
import pickle
import sys
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress

logger = logging.getLogger("attittud")

Event = tuple[Any, ...]
"""The name of a method of `Progress`, or "log" or "warning", and its arguments."""


@dataclass(frozen=True)
class Here:
    """What a job finds where it runs."""

    folder: Path
    data: Any
    progress: Progress


@dataclass(frozen=True, eq=False)
class Job:
    """One call: `function(here, *arguments)`."""

    name: str
    """Its name in messages."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    folder: Path | None = None
    """Its files travel with the job to another machine, and what the job leaves there comes back. None: no files."""
    data: Any = None
    """A large object that it shares with other jobs. It is handed over once, and must not be changed."""
    reads: Mapping[str, Path] = field(default_factory=dict)
    """Other files and folders that it only reads, such as a pretrained network, by the name that `files.local` knows."""
    threads: int = 1
    """The processor cores that it keeps busy."""
    device: str = "cpu"
    """As in a configuration; `auto` is a GPU where there is one."""


class Place(ABC):
    """A place that runs jobs."""

    at_once: int
    """How many jobs run at the same time."""

    @abstractmethod
    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[tuple[Job, Any]]:
        """Run jobs and yield each result when it is known. A job is taken from `jobs` when there is room for it.

        An error of a job is raised here. Unfinished jobs are then stopped; the files in their folders are whole.
        """


class InThisProcess(Place):
    """One job after the other."""

    at_once = 1

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[tuple[Job, Any]]:
        for job in jobs:
            progress.begin(job.name)
            result = job.function(Here(job.folder or Path(), job.data, progress), *job.arguments)
            progress.end()
            yield job, result


@contextmanager
def in_this_process() -> Iterator[Place]:
    yield InThisProcess()


# ------------------------------------------------------------------------------------------ what other processes need


@dataclass
class Outcome:
    """What a job in another process ended with."""

    result: Any
    error: Exception | None
    events: list[Event]
    """The reports that have not been sent before."""


class Reports(Progress):
    """Collects what the user should see, and sends it to the first process, at most once in `every` seconds."""

    def __init__(self, send: Callable[[list[Event]], None], every: float) -> None:
        self._send, self._every, self._sent = send, every, -math.inf
        self.events: list[Event] = []

    def tell(self, *event: Any) -> None:
        self.events.append(event)
        if time.monotonic() - self._sent >= self._every:
            self._send(self.events)
            self.events, self._sent = [], time.monotonic()

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self.tell("phase", name, steps, done)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self.tell("advance", steps, dict(values))

    def evaluated(self, values: Mapping[str, float]) -> None:
        self.tell("evaluated", dict(values))

    def say(self, text: str) -> None:
        self.tell("say", text)


class _Forward(logging.Handler):
    def __init__(self, reports: Reports) -> None:
        super().__init__()
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        self._reports.tell("log", record.levelno, record.getMessage())


@contextmanager
def _forwarded(reports: Reports) -> Iterator[None]:
    """Turn logged lines and warnings of this process into reports inside the block."""

    def show(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:  # noqa: ARG001 - as it is called
        reports.tell("warning", warnings.formatwarning(message, category, filename, lineno, line))

    handler, usual, passed_on = _Forward(reports), warnings.showwarning, logger.propagate
    logger.addHandler(handler)
    warnings.showwarning, logger.propagate = show, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        warnings.showwarning, logger.propagate = usual, passed_on


def perform(job: Job, folder: Path, data: Any, reports: Reports) -> Outcome:
    """Run a job in a process that was started for jobs."""
    try:
        with _forwarded(reports):
            result = job.function(Here(folder, data, reports), *job.arguments)
        return Outcome(result, None, reports.events)
    except Exception as error:
        return Outcome(None, _sendable(error), reports.events)


def _sendable(error: Exception) -> Exception:
    """Return an error that another process can raise; unless it is about input, it includes the traceback."""
    if not isinstance(error, InputError):
        error.add_note(f"In another process:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # each library has its own reasons
        return RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    return error


def replay(progress: Progress, events: Sequence[Event]) -> None:
    """Show reports of another process."""
    for kind, *values in events:
        if kind == "log":
            logger.log(*values)
        elif kind == "warning":
            sys.stderr.write(*values)
        else:
            getattr(progress, kind)(*values)


class Handed:
    """Large objects in the form that other processes get; objects that no job needs any more are dropped."""

    def __init__(self, make: Callable[[Any], Any], drop: Callable[[Any], object] = lambda _: None) -> None:
        self._make, self._drop = make, drop
        self._known: list[tuple[Any, Any]] = []

    def over(self, thing: Any, needed: Iterable[Any]) -> Any:
        """Return the form of an object; `needed` are the objects of unfinished jobs."""
        for known, made in self._known:
            if known is thing:
                return made
        others = list(needed)
        for entry in [entry for entry in self._known if not any(entry[0] is other for other in others)]:
            self._known.remove(entry)
            self._drop(entry[1])
        made = self._make(thing)
        self._known.append((thing, made))
        return made
