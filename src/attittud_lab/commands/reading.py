"""How commands read a configuration: every name in it is checked, also those that are registered from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
    from attittud import bases, engines
    from attittud_lab.data.tasks import OBJECTIVES
    from attittud_lab.models import find as find_model
    from attittud_lab.strategies import find as find_strategy

    objectives = [name for name, objective in OBJECTIVES.items() if not objective.derived]
    listed = {"basis": bases(), "engine": engines(), "objective": objectives}
    found: dict[str, Callable[[str], object]] = {kind: partial(_check, kind, names) for kind, names in listed.items()}
    return {"strategy": find_strategy, "model": find_model, **found}


def _check(kind: str, known: Sequence[str], name: str) -> None:
    if name not in known:
        raise unknown(kind, name, known)
