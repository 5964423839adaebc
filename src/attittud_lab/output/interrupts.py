"""Ctrl-C and SIGTERM: one sentence says what is kept.

`cli.py` enters `starting` and `signals`; a command that takes long enters `interruptible`.
"""

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

    word = _WORDS[signal.SIGINT]
    code = INTERRUPTED

    def terminate(self, number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM: end as after Ctrl-C, with its own word and code."""
        self.word = _WORDS[signal.SIGTERM]
        self.code = 128 + number
        raise KeyboardInterrupt


@contextmanager
def signals() -> Iterator[Ending]:
    """Let SIGTERM, which schedulers send, raise KeyboardInterrupt in the block, as Ctrl-C does."""
    ending = Ending()
    with _handled({signal.SIGTERM: ending.terminate}, instead_of=(signal.SIG_DFL,)):
        yield ending


@contextmanager
def starting() -> Iterator[None]:
    """Let a signal end the slow imports inside the block with a sentence instead of a traceback."""
    usual = (signal.default_int_handler, Ending.terminate)
    with _handled(dict.fromkeys(_WORDS, _leave), instead_of=usual):
        yield


@contextmanager
def _handled(
    handlers: Mapping[signal.Signals, Handler],
    instead_of: tuple[object, ...],
) -> Iterator[None]:
    """Install handlers of signals inside the block, where the present handler is in `instead_of`.

    All others stay, since somebody else has set them. Only a main thread can have handlers.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            present = signal.getsignal(number)
            function = getattr(present, "__func__", present)  # the function of a bound method
            if function in instead_of:
                before[number] = present
                signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _leave(number: int, _frame: FrameType | None) -> None:
    """Handle a signal: print a sentence and end the process."""
    # End at once: a half-imported library might swallow an exception, or report it.
    word = _WORDS[signal.Signals(number)]
    os.write(2, f"attittud: {word} while starting; nothing has been done\n".encode())
    os._exit(128 + number)


@contextmanager
def interruptible(advice: Callable[[], str]) -> Iterator[None]:
    """A signal inside becomes an `Interruption`; `advice` returns what follows "interrupted; "."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interruption(advice()) from None
