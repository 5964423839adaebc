"""Ctrl-C while the command line starts: importing torch takes seconds, before a line of any command can run."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

INTERRUPTED = 130
"""The exit code that shells know Ctrl-C by."""


@contextmanager
def hearing_interrupts() -> Iterator[None]:
    """Ctrl-C ends the command line with a sentence in place of a traceback; whoever imports the library sees no change."""
    ours = is_command_line() and threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_command_line() -> bool:
    """Whether this process is `attittud`, `attitud` or `python -m attittud`, as far as is known before any of it runs."""
    arguments = getattr(sys, "argv", None) or [""]
    if arguments[0] == "-m":  # the module's name stands in its place in what the interpreter was given
        return sys.orig_argv[-len(arguments)].removeprefix("-m") == "attittud"
    return Path(arguments[0]).stem in ("attittud", "attitud")


def _leave(_number: int, _frame: FrameType | None) -> None:
    # At once: an exception inside of a half-imported library may be swallowed there, or reported by it.
    os.write(2, b"attittud: interrupted while starting; nothing has been done\n")
    os._exit(INTERRUPTED)
