"""Errors for wrong input, in words that say what to do.

All rooms of the lab raise `InputError`. The command line prints its message and exits with 2. The
other functions write the parts of such messages: names, numbers, commands.
"""

import math
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class InputError(Exception):
    """The message is one paragraph: the culprit, the reason and the cure."""


class InputColumnError(InputError):
    """A table has neither images nor texts; its columns may be features."""


def one_line(error: BaseException, most: int | None = None) -> str:
    """Return another library's message without line breaks, cut to `most` characters."""
    return " ".join(str(error).split())[:most]


def short(text: str, most: int = 80) -> str:
    """Cut a user's words where they are too long to be shown again."""
    if len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text)} characters)"


def listed(names: Iterable[object], most: int = 20) -> str:
    """Join names for a sentence; long names are cut, and so is a long list."""
    words = [" ".join(str(name).split())[:40] for name in names]
    text = ", ".join(words[:most])
    if len(words) > most:
        text += ", ..."
    return text


def joined(names: Sequence[str]) -> str:
    """Join names as in a sentence: a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def counted(count: int, noun: str, many: str | None = None) -> str:
    """Return a number and its noun: `1 file`, `2 files`. `many` is the plural without a plain s."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {many or f'{noun}s'}"


def percent(share: float | None, sign: str = "") -> str:
    """Return a share in per cent; with the sign "+" a difference of shares in points.

    The text is empty if the share is not defined.
    """
    if share is None or math.isnan(share):
        return ""
    rounded = round(100 * share, 1) + 0.0  # adding 0 makes a negative zero positive
    return f"{rounded:{sign}.1f}"


def command(*words: object) -> str:
    """Return a command of `attittud` for a shell, quoted where paths need it."""
    return shlex.join(["attittud", *map(str, words)])


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the choice that a misspelt name probably means, None if nothing is similar.

    A choice that differs only in case or in blanks around it comes first. `cutoff` is difflib's:
    the least similarity, from 0 to 1.
    """
    names = list(choices)
    same = spellings(names).get(loose(name))
    if same:
        return same
    return next(iter(get_close_matches(name[:100], names, n=1, cutoff=cutoff)), None)


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Return names by their `loose` form."""
    return {loose(name): name for name in names}


def loose(name: str) -> str:
    """Return a name in lower case, in one Unicode form (NFKC), without blanks around it and without
    characters that have no width.

    All spellings that people confuse have the same loose form.
    """
    if not name.isascii():
        name = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    # Lower case may lead out of the normal form again, so it is made twice.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


def needs(extra: str | None, package: str, what: str) -> InputError:
    """Return the error for an optional package that is not installed.

    `extra` is our extra that installs it, None if there is none; `what` names the thing that needs
    the package.
    """
    command = f"pip install {package}"
    if extra:
        command = installing(extra)
    reason = f"{what} needs the package {package!r}, which is not installed"
    return InputError(f"{reason}; run: {command}")


def installing(extra: str) -> str:
    """Return the command that installs one of our extras, for a user and for a checkout."""
    return f"pip install 'attittud[{extra}]' (in a checkout: pip install '.[{extra}]')"


def optional(module: str, extra: str, what: str, package: str | None = None) -> Any:
    """Import a module that may not be installed; `what` needs it."""
    try:
        return import_module(module)
    except ImportError:
        raise needs(extra, package or module, what) from None


def unknown(what: str, name: str, choices: Iterable[str]) -> InputError:
    """Return the error for a name that is not in a list. It offers the nearest and lists all."""
    names = list(choices)
    near = nearest(name, names)
    hint = ""
    if near:
        hint = f" Did you mean {near!r}?"
    return InputError(f"unknown {what} {name[:80]!r}.{hint} Choose one of {', '.join(names)}.")
