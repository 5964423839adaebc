"""How commands read a configuration: every name in it is checked, also those that are registered from outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from attittud_lab.config.load import Names, load, loads
from attittud_lab.config.schema import Config
from attittud_lab.errors import unknown


def read(path: str | Path, overrides: Sequence[str]) -> Config:
    """The configuration of a file, changed by KEY=VALUE."""
    return load(path, overrides, known_names())


def read_text(text: str, overrides: Sequence[str], name: str) -> Config:
    """The same of a text that complaints call `name`."""
    return loads(text, overrides, name, known_names())


def known_names() -> Names:
    """How the names of each kind are checked. Importing them takes seconds."""
    from attittud.basis import _BASES
    from attittud.engine import _ENGINES
    from attittud_lab.models import find as check_model
    from attittud_lab.strategies import find as check_strategy

    def check(kind: str, known: Iterable[str], name: str) -> None:
        if name not in known:
            raise unknown(kind, name, known)

    return {
        "strategy": check_strategy,
        "model": check_model,
        "basis": lambda name: check("basis", _BASES, name),
        "engine": lambda name: check("engine", _ENGINES, name),
    }
