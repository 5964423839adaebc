"""Independent jobs, and the interface behind which they run.

They run in this process, in other processes (`processes.py`) or on other machines (`cluster.py`).
Comparisons and the portfolio make the jobs. A job is a function of a module, so that any process
can import it, with small arguments. It reads and writes files only in its own folder. The place
where it runs changes neither its result nor its files.
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
    """Its files travel with the job to another machine, and come back as the job leaves them.

    None: no files.
    """
    data: Any = None
    """A large object that it shares with other jobs.

    It is handed over once, and must not be changed.
    """
    reads: Mapping[str, Path] = field(default_factory=dict)
    """Other files and folders that it only reads, such as a pretrained network.

    They are named as `files.local` knows them.
    """
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
        """Run jobs and yield each result when it is known.

        A job is taken from `jobs` when there is room for it. An error of a job is raised here.
        Unfinished jobs are then stopped; the files in their folders are whole.
        """


class InThisProcess(Place):
    """One job after the other, with the progress that the user sees."""

    at_once = 1

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[tuple[Job, Any]]:
        for job in jobs:
            shown = progress.begin(job.name)
            here = Here(job.folder or Path(), job.data, shown)
            result = job.function(here, *job.arguments)
            shown.end()
            yield job, result


@contextmanager
def in_this_process() -> Iterator[Place]:
    yield InThisProcess()


# ------------------------------------------------------------------------ what other processes need


@dataclass
class Outcome:
    """What a job in another process ended with."""

    result: Any
    error: Exception | None
    events: list[Event]
    """The reports that have not been sent before."""


class Reports(Progress):
    """Collects what the user should see, and sends it to the first process.

    It sends at most once in `every` seconds.
    """

    def __init__(self, send: Callable[[list[Event]], None], every: float) -> None:
        self._send = send
        self._every = every
        self._sent = -math.inf
        """When events were sent last."""
        self.events: list[Event] = []

    def tell(self, *event: Any) -> None:
        """Note an event, and send all unsent ones if enough time has passed."""
        self.events.append(event)
        if time.monotonic() - self._sent >= self._every:
            self._send(self.events)
            self.events = []
            self._sent = time.monotonic()

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

    def show(
        message: Any,
        category: Any,
        filename: Any,
        lineno: Any,
        file: Any = None,  # noqa: ARG001 - it is called with it
        line: Any = None,
    ) -> None:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        reports.tell("warning", text)

    handler = _Forward(reports)
    usual_show = warnings.showwarning
    usual_propagate = logger.propagate
    logger.addHandler(handler)
    warnings.showwarning = show
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        warnings.showwarning = usual_show
        logger.propagate = usual_propagate


def perform(job: Job, folder: Path, data: Any, reports: Reports) -> Outcome:
    """Run a job in a process that was started for jobs."""
    try:
        with _forwarded(reports):
            result = job.function(Here(folder, data, reports), *job.arguments)
        return Outcome(result, None, reports.events)
    except Exception as error:
        return Outcome(None, _sendable(error), reports.events)


def _sendable(error: Exception) -> Exception:
    """Return an error that another process can raise.

    Unless it is about input, it includes the traceback.
    """
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
    """Large objects in the form that other processes get.

    `make` turns an object into this form, such as a path or a reference of Ray. `drop` removes it
    when no job needs the object any more.
    """

    def __init__(
        self,
        make: Callable[[Any], Any],
        drop: Callable[[Any], object] = lambda _: None,
    ) -> None:
        self._make = make
        self._drop = drop
        self._forms: dict[int, tuple[Any, Any]] = {}
        """Objects with their forms, by `id`; the objects are held, so that no `id` is reused."""

    def over(self, thing: Any, needed: Iterable[Any]) -> Any:
        """Return the form of an object; `needed` are the objects of unfinished jobs."""
        if id(thing) in self._forms:
            return self._forms[id(thing)][1]
        still_needed = {id(other) for other in needed}
        for key in self._forms.keys() - still_needed:
            _, form = self._forms.pop(key)
            self._drop(form)
        form = self._make(thing)
        self._forms[id(thing)] = (thing, form)
        return form
