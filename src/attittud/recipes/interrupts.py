"""Ctrl-C: one sentence on what is kept, and not a word from the processes that a command has started."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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


def end_at_interrupts() -> None:
    """At once and without a word, also at one that came too early."""
    if hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
