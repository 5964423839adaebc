"""Engines by name: how products with the Jacobian of per-example losses are computed."""

from attittud.engine.auto import Auto
from attittud.engine.base import Engine, Jacobian, Loop, UnsupportedError
from attittud.engine.hooks import Hooks
from attittud.eta import choose

_ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Auto, Loop, Hooks)}


def register_engine(engine: type[Engine]) -> type[Engine]:
    """Register an engine under its `name` for `Guide(engine=...)`; a decorator. The interface may
    still change.
    """
    _ENGINES[engine.name] = engine
    return engine


def engines() -> tuple[str, ...]:
    """Return the names that `Guide(engine=...)` accepts."""
    return tuple(_ENGINES)


def find_engine(name: str) -> type[Engine]:
    """Return the engine of this name, without making one."""
    return choose("engine", name, _ENGINES)


def make_engine(name: str) -> Engine:
    """Make the engine of this name."""
    return find_engine(name)()


__all__ = [
    "Engine",
    "Jacobian",
    "UnsupportedError",
    "engines",
    "find_engine",
    "make_engine",
    "register_engine",
]
