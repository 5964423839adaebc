"""Jobs in several processes of this machine: `--workers N`.

These processes print nothing, and end with the process that started them, however it ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from attittud_lab.errors import one_line
from attittud_lab.files import cannot_write, scratch_folder
from attittud_lab.placing.job import (
    Job,
    Lost,
    Message,
    OtherProcesses,
    Outcome,
    Place,
    Reports,
    perform,
)

_EVERY = 0.1  # seconds between two reports of a process


class _Worker:
    """A process that runs one job after the other."""

    def __init__(self) -> None:
        # Not forked: neither torch's threads nor CUDA survive a fork.
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,))
        with _no_interrupts():
            self.process.start()
        other.close()

    def end(self) -> None:
        self.process.kill()  # not terminate, which the process may have been started to ignore
        self.process.join()
        self.connection.close()


class _Processes(OtherProcesses):
    """Each process has one job at a time and answers through its connection, the key of the job.

    While the job goes on, the answers are lists of events; an `Outcome` is the last one. A
    connection that is closed instead means that the process died.
    """

    tries = 2
    cure = "use fewer --workers or a smaller batch, then give the same command again"

    def __init__(self, at_once: int, folder: Path) -> None:
        super().__init__()
        self.at_once = at_once
        self.idle: list[_Worker] = []
        self.busy: dict[Any, _Worker] = {}
        self._data_paths = (folder / f"{number}.data" for number in count())

    def start(self, job: Job) -> Connection:
        """Give a job to an idle process, or to a new one."""
        if not self.idle:
            self.idle.append(_Worker())
        worker = self.idle.pop()
        self.busy[worker.connection] = worker
        with suppress(OSError):  # it is dead: that shows when its answer is read
            worker.connection.send((replace(job, data=None), self.form(job.data)))
        return worker.connection

    def messages(self, jobs: Mapping[Any, Job]) -> Iterator[tuple[Any, Message]]:
        """Wait until processes have answered or died, and yield one message for each of them.

        A process whose job has ended is idle again.
        """
        for connection in wait([*jobs]):
            assert isinstance(connection, Connection)
            message: Message
            try:
                message = connection.recv()
            except (EOFError, OSError, pickle.UnpicklingError):  # closed, perhaps in a message
                message = self._died(self.busy.pop(connection))
            if isinstance(message, Outcome):
                self.idle.append(self.busy.pop(connection))
            yield connection, message

    def _died(self, worker: _Worker) -> Lost:
        """Return why a process died, and continue with one process fewer, since memory may be
        short.
        """
        worker.process.join()
        worker.connection.close()
        self.at_once = max(1, self.at_once - 1)
        code = worker.process.exitcode or 0
        if -code == signal.SIGKILL:
            return Lost("was killed by signal 9, which the system does when memory is short")
        return Lost(f"ended with code {code}")

    def stop(self, jobs: Mapping[Any, Job]) -> None:
        for connection in jobs:
            self.busy.pop(connection).end()

    def hand_over(self, data: Any) -> Path:
        """Write data into a file that all processes read through the same memory."""
        import torch

        path = next(self._data_paths)
        try:
            torch.save(data, path)
        except (OSError, RuntimeError) as error:  # the latter is torch's word for a full disk
            reason = OSError(0, one_line(error))
            advice = "set TMPDIR to another folder, or leave --workers out"
            raise cannot_write(path, reason, advice) from None
        return path

    def drop(self, form: Path) -> None:
        form.unlink(missing_ok=True)


@contextmanager
def in_processes(at_once: int) -> Iterator[Place]:
    """This many processes, which are started when they are needed."""
    with scratch_folder() as folder:
        place = _Processes(at_once, folder)
        try:
            yield place
        finally:
            for worker in place.idle:
                worker.end()


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
    """Run the jobs that come through a connection, and send their outcomes back, until it is closed.

    The data of the latest job are kept for the next one.
    """
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
            reports = Reports(connection.send, _EVERY)
            data_of_job = None if stored is None else data
            connection.send(perform(job, job.folder or Path(), data_of_job, reports))


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
