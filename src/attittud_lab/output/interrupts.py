"""Ctrl-C and SIGTERM: one sentence says what is kept."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]
INTERRUPTED = 128 + signal.SIGINT
"""The exit code that shells use for Ctrl-C."""

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Interruption(Exception):  # noqa: N818 - nothing went wrong
    """Ctrl-C or SIGTERM. The message says what is kept and how to continue."""


class Ending:
    """How a stopped command ends: as after Ctrl-C, unless SIGTERM stopped it."""

    word, code = _WORDS[signal.SIGINT], INTERRUPTED

    def terminate(self, number: int, _frame: FrameType | None) -> None:
        self.word, self.code = _WORDS[signal.SIGTERM], 128 + number
        raise KeyboardInterrupt


@contextmanager
def signals() -> Iterator[Ending]:
    """Let SIGTERM, which schedulers send, raise KeyboardInterrupt inside the block, as Ctrl-C does."""
    ending = Ending()
    with _handled({signal.SIGTERM: ending.terminate}, instead_of=(signal.SIG_DFL,)):
        yield ending


@contextmanager
def starting() -> Iterator[None]:
    """Let a signal end the slow imports inside the block with a sentence instead of a traceback."""
    with _handled(dict.fromkeys(_WORDS, _leave), instead_of=(signal.default_int_handler, Ending.terminate)):
        yield


@contextmanager
def _handled(handlers: Mapping[signal.Signals, Handler], instead_of: tuple[object, ...]) -> Iterator[None]:
    """Replace these handlers of signals, and leave all others alone; only a main thread can have handlers."""
    before = {number: signal.getsignal(number) for number in handlers}
    before = {number: old for number, old in before.items() if getattr(old, "__func__", old) in instead_of}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    for number in before:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _leave(number: int, _frame: FrameType | None) -> None:
    # End at once: a half-imported library might swallow an exception, or report it.
    os.write(2, f"attittud: {_WORDS[signal.Signals(number)]} while starting; nothing has been done\n".encode())
    os._exit(128 + number)


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """A signal inside becomes an `Interruption`; `kept` returns what follows "interrupted; "."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interruption(kept()) from None
