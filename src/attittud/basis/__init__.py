"""Bases by name. A basis spans the subspace in which the two tasks are compared."""

from attittud.basis.base import Basis, Refresh, Sketch, orthonormal_rows
from attittud.basis.canonical import Canonical
from attittud.basis.exact import Exact
from attittud.basis.mean import Mean
from attittud.basis.random import Random
from attittud.basis.svd import Svd
from attittud.eta import choose

_BASES: dict[str, type[Basis]] = {
    basis.name: basis for basis in (Sketch, Svd, Exact, Mean, Random, Canonical)
}


def register_basis(basis: type[Basis]) -> type[Basis]:
    """Register a basis under its `name` for `Guide(basis=...)`; a decorator. The interface may
    still change.
    """
    _BASES[basis.name] = basis
    return basis


def bases() -> tuple[str, ...]:
    """Return the names that `Guide(basis=...)` accepts."""
    return tuple(_BASES)


def make_basis(name: str) -> Basis:
    """Make the basis of this name."""
    return choose("basis", name, _BASES)()


__all__ = ["Basis", "Refresh", "bases", "make_basis", "orthonormal_rows", "register_basis"]
