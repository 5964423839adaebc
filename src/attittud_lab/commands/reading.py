"""How commands read a configuration: every name in it is checked, also those that are registered from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    from attittud_lab.data.tasks import OBJECTIVES
    from attittud_lab.models import find as find_model
    from attittud_lab.strategies import find as find_strategy

    def one_of(kind: str, known: Iterable[str]) -> Callable[[str], None]:
        def check(name: str) -> None:
            if name not in known:
                raise unknown(kind, name, known)

        return check

    objectives = [name for name, objective in OBJECTIVES.items() if not objective.derived]
    return {
        "strategy": find_strategy,
        "model": find_model,
        "objective": one_of("objective", objectives),
        "basis": one_of("basis", _BASES),
        "engine": one_of("engine", _ENGINES),
    }
