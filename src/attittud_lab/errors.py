"""Errors for wrong input, in words that say what to do: the command line prints them and exits with 2."""

import shlex
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class InputError(Exception):
    """The message is one paragraph: the culprit, the reason and the cure."""


class InputColumnError(InputError):
    """A table has neither images nor texts; its columns may be features."""


def one_line(error: BaseException, most: int | None = None) -> str:
    """Cut another library's message to this many characters, so that it fits into one of our paragraphs."""
    return " ".join(str(error).split())[:most]


def short(text: str, most: int = 80) -> str:
    """Cut a user's words where they are too long to be shown again."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def listed(names: Iterable[object], most: int = 20) -> str:
    """Join names for a sentence; long names are cut, and so is a long list."""
    words = [" ".join(str(name).split())[:40] for name in names]
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")


def joined(names: Sequence[str]) -> str:
    """Join names as in a sentence: a, b and c."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number and its noun, such as `1 file` and `2 files`; `many` is the plural if it does not only add an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def command(*words: object) -> str:
    """Return a command of `attittud` that can be pasted into a shell, whatever characters its paths have."""
    return shlex.join(["attittud", *map(str, words)])


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that a misspelt name probably means: first a name that differs only in case or blanks."""
    known = list(known)
    same = spellings(known).get(loose(name))
    return same or next(iter(get_close_matches(name[:100], known, n=1, cutoff=cutoff)), None)


def spellings(known: Iterable[str]) -> dict[str, str]:
    """Return names by their `loose` form."""
    return {loose(name): name for name in known}


def loose(name: str) -> str:
    """Return a name in lower case and without blanks around it, the same for all spellings that people confuse."""
    return name.casefold().strip()


def needs(extra: str | None, package: str, what: str) -> InputError:
    """The error for an optional package that is not installed; `extra` is our extra that installs it."""
    cure = f"'attittud[{extra}]' (in a checkout: pip install '.[{extra}]')" if extra else package
    return InputError(f"{what} needs the package {package!r}, which is not installed; run: pip install {cure}")


def optional(module: str, extra: str, what: str, package: str | None = None) -> Any:
    """Import a module that may not be installed; `what` needs it."""
    try:
        return import_module(module)
    except ImportError:
        raise needs(extra, package or module, what) from None


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a list; it offers the nearest name and lists all."""
    near = nearest(name, known := list(known))
    hint = f" Did you mean {near!r}?" if near else ""
    return InputError(f"unknown {what} {name[:80]!r}.{hint} Choose one of {', '.join(known)}.")
