"""Bases by name: the subspace in which the two tasks are compared."""

from attittud.basis.base import Basis, Refresh, orthonormal_rows
from attittud.basis.canonical import Canonical
from attittud.basis.exact import Exact
from attittud.basis.implicit import Implicit
from attittud.basis.mean import Mean
from attittud.basis.random import Random
from attittud.basis.sketch import Sketch
from attittud.basis.svd import Svd
from attittud.engine import BASIS_AS_ENGINE
from attittud.engine.auto import Auto
from attittud.eta import choose

_BASES: dict[str, type[Basis]] = {
    basis.name: basis for basis in (Sketch, Svd, Exact, Mean, Random, Canonical, Implicit)
}


def register_basis(basis: type[Basis]) -> type[Basis]:
    """A decorator: `Guide(basis=...)` then finds the basis by its `name`. Provisional: the interface may still change."""
    _BASES[basis.name] = basis
    return basis


def bases() -> tuple[str, ...]:
    """The names that `Guide(basis=...)` knows."""
    return tuple(_BASES)


def make_basis(name: str) -> Basis:
    return choose("basis", name, _BASES)()


def respelled(basis: str, engine: str) -> tuple[str, str]:
    """A basis and an engine as they are named today, where a user names the basis as the engine."""
    if engine != BASIS_AS_ENGINE:
        return basis, engine
    meant = _BASES[engine]
    if basis not in (meant.same_as, meant.name):
        raise ValueError(
            f"engine={engine!r} computes basis={meant.same_as!r} without storing it, not basis={basis!r}; pass "
            f"basis={meant.same_as!r}, or another engine"
        )
    return meant.name, Auto.name


__all__ = ["Basis", "Refresh", "bases", "make_basis", "orthonormal_rows", "register_basis", "respelled"]
