"""Ctrl-C while the command line starts: importing torch takes seconds, before a line of any command can run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code that shells know Ctrl-C by."""


@contextmanager
def interruptible_start() -> Iterator[None]:
    """Ctrl-C ends the imports inside with a sentence in place of a traceback."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    # At once: an exception inside of a half-imported library may be swallowed there, or reported by it.
    os.write(2, b"attittud: interrupted while starting; nothing has been done\n")
    os._exit(INTERRUPTED)
