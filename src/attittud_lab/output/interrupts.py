"""Ctrl-C: one sentence on what is kept, and not a word from the processes that a command has started."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context


class Interruption(Exception):  # noqa: N818 - nothing went wrong
    """Ctrl-C. The message says what is kept and how to go on."""


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C in here becomes an `Interruption`; `kept` is asked then for what follows "interrupted; "."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interruption(f"interrupted; {kept()}") from None


@contextmanager
def worker_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end at Ctrl-C, whether it comes to them too or to this one alone. Submit inside `deaf_to_interrupts`.

    Where anything else goes wrong, what they are at is brought to its end.
    """
    others = active_children()
    # Not forked: neither torch's threads nor CUDA survive that.
    with ProcessPoolExecutor(count, get_context("spawn"), initializer=_end_at_interrupts) as pool:
        try:
            yield pool
        except BaseException as error:
            if not isinstance(error, Exception):
                for process in active_children():
                    if process not in others:
                        process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """A process that is started here does not hear Ctrl-C while it imports, and would print where it was."""
    if not hasattr(signal, "pthread_sigmask"):  # not a POSIX system
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # an interrupt that came meanwhile comes now


def _end_at_interrupts() -> None:
    """At once and without a word, also at one that came too early."""
    if hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
