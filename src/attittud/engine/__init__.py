"""Engines by name: how products with the Jacobian of per-example losses are computed."""

import warnings

from attittud.engine.auto import Auto
from attittud.engine.base import Engine, Jacobian, UnsupportedError
from attittud.engine.batched import Batched
from attittud.engine.hooks import Hooks
from attittud.engine.loop import Loop
from attittud.eta import choose

_ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Auto, Loop, Batched, Hooks)}

BASIS_AS_ENGINE = "implicit"
"""The basis that `Guide(engine=...)` still accepts: in old versions this was the only way to choose it."""


class _Implicit(Hooks):
    """The old name of the engine for this basis."""

    keeps_graph = True
    release = Hooks.forget


def _warn(what: str) -> None:
    warnings.warn(
        f"{what} will be removed in version 0.3; use Guide(basis={BASIS_AS_ENGINE!r}), whose engine is "
        "attittud.engine.hooks.Hooks",
        DeprecationWarning,
        stacklevel=3,
    )


def __getattr__(name: str) -> type[Engine]:
    if name == "Implicit":
        _warn(f"{__name__}.{name}")
        return _Implicit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register_engine(engine: type[Engine]) -> type[Engine]:
    """Register an engine under its `name` for `Guide(engine=...)`; a decorator. The interface may still change."""
    _ENGINES[engine.name] = engine
    return engine


def engines() -> tuple[str, ...]:
    """Return the names that `Guide(engine=...)` accepts."""
    return (*_ENGINES, BASIS_AS_ENGINE)


def find_engine(name: str) -> type[Engine]:
    return choose("engine", name, _ENGINES)


def make_engine(name: str, *, keeps_graph: bool = False) -> Engine:
    """Make an engine. `keeps_graph`: the graph of the losses is used after `watch` too, until the step is over."""
    if name == BASIS_AS_ENGINE:
        _warn(f"make_engine({name!r})")
        return _Implicit()
    engine = find_engine(name)()
    if keeps_graph:
        engine.keep_graph()
    return engine


__all__ = [
    "BASIS_AS_ENGINE",
    "Engine",
    "Jacobian",
    "UnsupportedError",
    "engines",
    "find_engine",
    "make_engine",
    "register_engine",
]
