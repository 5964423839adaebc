"""Engines by name: how products with the Jacobian of per-example losses are computed."""

from attittud.engine.auto import Auto
from attittud.engine.base import Engine, Jacobian, UnsupportedError
from attittud.engine.batched import Batched
from attittud.engine.hooks import Hooks
from attittud.engine.loop import Loop
from attittud.eta import choose

_ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (Auto, Loop, Batched, Hooks)}


def register_engine(engine: type[Engine]) -> type[Engine]:
    """A decorator: `Guide(engine=...)` then finds the engine by its `name`. Provisional: the interface may still change."""
    _ENGINES[engine.name] = engine
    return engine


def engines() -> tuple[str, ...]:
    """The names that `Guide(engine=...)` knows."""
    return (*_ENGINES, "implicit")


def make_engine(name: str, *, keeps_graph: bool = False) -> Engine:
    """Make an engine. `keeps_graph`: the graph of the losses is also used after `watch`, until the step is over."""
    engine = choose("engine", name, _ENGINES)()
    if keeps_graph:
        engine.keep_graph()
    return engine


__all__ = ["Engine", "Jacobian", "UnsupportedError", "engines", "make_engine", "register_engine"]
