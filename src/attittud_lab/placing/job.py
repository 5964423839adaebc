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
import time
import traceback
import weakref
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
"""The name of a method of `Progress`, or "log", and its arguments."""


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
    """Turns logged lines into reports."""

    def __init__(self, reports: Reports) -> None:
        super().__init__()
        self._reports = reports

    def emit(self, record: logging.LogRecord) -> None:
        self._reports.tell("log", record.levelno, record.getMessage())


@contextmanager
def _forwarded(reports: Reports) -> Iterator[None]:
    """Turn logged lines and warnings of this process into reports inside the block."""
    handler = _Forward(reports)
    loggers = (logger, logging.getLogger("py.warnings"))
    logging.captureWarnings(True)
    for source in loggers:
        source.addHandler(handler)
        source.propagate = False
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for source in loggers:
            source.removeHandler(handler)
            source.propagate = True


def perform(job: Job, folder: Path, data: Any, reports: Reports) -> Outcome:
    """Run a job in a process that was started for jobs.

    An error of the job is part of the outcome; it is not raised here.
    """
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
    """Show reports of another process: log its lines, and repeat its calls of `progress`."""
    for kind, *values in events:
        if kind == "log":
            logger.log(*values)
        else:
            getattr(progress, kind)(*values)


@dataclass(frozen=True)
class Lost:
    """The process of a job ended without an outcome."""

    reason: str


Message = list[Event] | Outcome | Lost


class OtherProcesses(Place):
    """Runs several jobs at once, each in another process; a job whose process is lost is repeated.

    A key names a job from its start to its end.
    """

    tries: int
    """How often a job is started if its process is lost."""
    cure: str
    """What a person can do if a job is lost every time."""

    def __init__(self) -> None:
        self._forms: dict[int, Any] = {}

    @property
    def most(self) -> int:
        """How many jobs are started before one of them has ended."""
        return self.at_once

    @abstractmethod
    def start(self, job: Job) -> Any:
        """Start a job and return its key."""

    @abstractmethod
    def messages(self, jobs: Mapping[Any, Job]) -> Iterator[tuple[Any, Message]]:
        """Wait for messages of started jobs, and yield them with their keys."""

    @abstractmethod
    def stop(self, jobs: Mapping[Any, Job]) -> None:
        """Stop jobs after an error."""

    @abstractmethod
    def hand_over(self, data: Any) -> Any:
        """Turn data into the form that other processes get, such as a path."""

    def drop(self, form: Any) -> None:
        """Remove a form when nobody has the data any more."""

    def form(self, data: Any) -> Any:
        """Return data in the form that other processes get; None for None.

        It is made once, and dropped when the data themselves are freed.
        """
        key = id(data)
        if data is not None and key not in self._forms:
            self._forms[key] = self.hand_over(data)
            weakref.finalize(data, lambda: self.drop(self._forms.pop(key)))
        return self._forms.get(key)

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[tuple[Job, Any]]:
        """Start jobs while there is room, and answer their messages until all have ended."""
        todo = iter(jobs)
        lost: list[Job] = []  # to be started again
        busy: dict[Any, Job] = {}  # started jobs by key
        shown: dict[Job, Progress] = {}
        tries: dict[Job, int] = {}  # how often each job was started
        try:
            while True:
                while len(busy) < self.most:
                    job = lost.pop() if lost else next(todo, None)
                    if job is None:
                        break
                    if job not in shown:
                        shown[job] = progress.begin(job.name)
                    tries[job] = tries.get(job, 0) + 1
                    busy[self.start(job)] = job
                if not busy:
                    return
                for key, message in self.messages(busy):
                    job = busy[key]
                    if isinstance(message, list):  # reports, while the job goes on
                        replay(shown[job], message)
                        continue
                    del busy[key]
                    if isinstance(message, Lost):
                        where = f"{job.name}: its process {message.reason}"
                        if tries[job] == self.tries:
                            failure = f"{where}, the {self.tries}. time, in {job.folder}"
                            raise InputError(f"{failure}; {self.cure}: finished runs are kept")
                        progress.say(f"{where}. It starts again.")
                        lost.append(job)
                        continue
                    # An outcome: the job has ended.
                    replay(shown[job], message.events)
                    if message.error is not None:
                        raise message.error
                    shown.pop(job).end()
                    yield job, message.result
        finally:
            self.stop(busy)
