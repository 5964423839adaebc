"""Engines by name."""

from attittud.engine.auto import Auto
from attittud.engine.base import Engine, Jacobian, UnsupportedError
from attittud.engine.batched import Batched
from attittud.engine.implicit import Implicit
from attittud.engine.loop import Loop
from attittud.engine.per_example.hooks import Hooks
from attittud.eta import choose

_ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Auto, Loop, Batched, Hooks, Implicit)}


def make_engine(name: str) -> Engine:
    return choose("engine", name, _ENGINES)()


__all__ = ["Engine", "Implicit", "Jacobian", "UnsupportedError", "make_engine"]
