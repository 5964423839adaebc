"""Jobs in several processes of this machine: `--workers N`.

These processes print nothing, and end with the process that started them, however it ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from attittud_lab.errors import InputError
from attittud_lab.files import cannot_write, scratch_folder
from attittud_lab.output.progress import Progress
from attittud_lab.placing.job import Handed, Job, Outcome, Place, Reports, perform, replay

TRIES = 2
"""How often a job is started if its process dies."""
_EVERY = 0.1  # seconds between two reports of a process


class _Worker:
    """A process, and its current job."""

    job: Job
    progress: Progress

    def __init__(self) -> None:
        # Not forked: neither torch's threads nor CUDA survive a fork.
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,))
        with _no_interrupts():
            self.process.start()
        other.close()

    def give(self, job: Job, stored: Path | None, progress: Progress) -> None:
        self.job, self.progress = job, progress
        with suppress(OSError):  # it is dead: that shows when its answer is read
            self.connection.send((replace(job, data=None), stored))

    def end(self) -> None:
        self.process.kill()  # not terminate, which the process may have been started to ignore
        self.process.join()
        self.connection.close()


class _Processes(Place):
    def __init__(self, at_once: int, folder: Path) -> None:
        self.at_once = at_once
        self.workers: list[_Worker] = []
        names = (folder / f"{number}.data" for number in count())
        self._stored = Handed(
            lambda data: _store(data, next(names)),
            lambda path: path.unlink(missing_ok=True),
        )

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[tuple[Job, Any]]:
        """Run jobs in processes and yield their results.

        Each process has one job at a time and answers through its connection: lists of events while
        the job goes on, and an `Outcome` at its end. A connection that is closed instead means that
        the process died; its job starts again in another one.
        """
        todo = ((job, progress.begin(job.name)) for job in jobs)
        again: list[tuple[Job, Progress]] = []  # jobs whose process died
        busy: dict[Connection, _Worker] = {}
        tries: dict[Job, int] = {}
        try:
            while True:
                while len(busy) < self.at_once:
                    waiting = again.pop() if again else next(todo, None)
                    if waiting is None:
                        break
                    worker = self._begin(*waiting, busy)
                    busy[worker.connection] = worker
                if not busy:
                    return
                for connection in wait([*busy]):
                    assert isinstance(connection, Connection)
                    worker = busy[connection]
                    try:
                        message: Outcome | list[Any] = connection.recv()
                    except (EOFError, OSError, pickle.UnpicklingError):
                        del busy[connection]
                        self._died(worker, progress, tries)
                        again.append((worker.job, worker.progress))
                        continue
                    if isinstance(message, list):  # reports, while the job goes on
                        replay(worker.progress, message)
                        continue
                    del busy[connection]
                    replay(worker.progress, message.events)
                    if message.error is not None:
                        raise message.error
                    worker.progress.end()
                    yield worker.job, message.result
        finally:
            for worker in busy.values():  # after an error
                worker.end()
                self.workers.remove(worker)

    def _begin(self, job: Job, progress: Progress, busy: dict[Connection, _Worker]) -> _Worker:
        """Give a job to an idle process; its data are stored once for all jobs that share them."""
        others = [worker.job.data for worker in busy.values()]
        stored = None if job.data is None else self._stored.over(job.data, others)
        worker = self._idle(busy)
        worker.give(job, stored, progress)
        return worker

    def _idle(self, busy: dict[Connection, _Worker]) -> _Worker:
        """Return a process without a job; it is started if all are busy."""
        for worker in self.workers:
            if worker.connection not in busy:
                return worker
        self.workers.append(_Worker())
        return self.workers[-1]

    def _died(self, worker: _Worker, progress: Progress, tries: dict[Job, int]) -> None:
        """Continue with one process fewer, since memory may be short.

        A job that has died `TRIES` times is an error.
        """
        self.workers.remove(worker)
        worker.process.join()
        worker.connection.close()
        job = worker.job
        code = worker.process.exitcode or 0
        if code < 0:
            reason = f"was killed by signal {-code}"
        else:
            reason = f"ended with code {code}"
        if -code == signal.SIGKILL:
            reason += ", which the system does when memory is short"
        tries[job] = tries.get(job, 1) + 1
        if tries[job] > TRIES:
            name = f"{job.name} ({job.folder or 'no folder'})"
            failure = f"failed {TRIES} times; the last time its process {reason}"
            cure = "use fewer --workers or a smaller batch, then give the same command again"
            raise InputError(f"{name}: {failure}; {cure}: finished runs are kept")
        self.at_once = max(1, self.at_once - 1)
        others = f"{self.at_once} processes are left"
        if self.at_once == 1:
            others = "one process is left"
        progress.say(f"{job.name}: its process {reason}. It starts again, and {others}.")


@contextmanager
def in_processes(at_once: int) -> Iterator[Place]:
    """This many processes, which are started when they are needed."""
    with scratch_folder() as folder:
        place = _Processes(at_once, folder)
        try:
            yield place
        finally:
            for worker in place.workers:
                worker.end()


def _store(data: Any, path: Path) -> Path:
    """Write data into a file that all processes read through the same memory."""
    import torch

    try:
        torch.save(data, path)
    except (OSError, RuntimeError) as error:  # the latter is torch's word for a full disk
        if isinstance(error, OSError):
            reason = error
        else:
            reason = OSError(0, str(error).splitlines()[0])
        cure = "set TMPDIR to another folder, or leave --workers out"
        raise cannot_write(path, reason, cure) from None
    return path


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Protect processes that are started inside from Ctrl-C while they import.

    They would print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not a POSIX system
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        # An interrupt that came meanwhile is delivered now.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection) -> None:
    """Run jobs until the first process has no more of them."""
    _end_with_the_others()
    data_path: Path | None = None
    data: Any = None
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            job, stored = connection.recv()
            if stored is not None and stored != data_path:
                import torch

                data = None  # not two at the same time
                # The first process wrote the file, so it may be unpickled.
                data = torch.load(stored, mmap=True, weights_only=False)
                data_path = stored
            folder = job.folder or Path()
            reports = Reports(connection.send, _EVERY)
            outcome = perform(job, folder, None if stored is None else data, reports)
            connection.send(outcome)


def _end_with_the_others() -> None:
    """End at once and silently after an interrupt, and when the first process is gone."""
    if hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_outlive_nobody, daemon=True).start()


def _outlive_nobody() -> None:
    """End this process when the first one has ended."""
    # While a job runs, nobody reads the connection that a killed process closes.
    first = parent_process()
    if first is not None:
        first.join()
        os._exit(1)
