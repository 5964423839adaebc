"""What ends a command early, in words that say what to do: the command line prints them, and exits with 2 or 130."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class InputError(Exception):
    """The message is one paragraph: the culprit, the reason and the cure."""


def needs(extra: str | None, package: str, what: str) -> InputError:
    """The error for an optional package that is not installed; `extra` is the one of ours that brings it."""
    cure = f"'attittud[{extra}]'" if extra else package
    return InputError(f"{what} needs the package {package!r}, which is not installed; run: pip install {cure}")


class Interruption(Exception):  # noqa: N818 - nothing went wrong
    """Ctrl-C. The message says what is kept and how to go on."""


@contextmanager
def interruptible(kept: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C in here becomes an `Interruption`; `kept` is asked then for what follows "interrupted; "."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interruption(f"interrupted; {kept()}") from None
