"""Bases by name."""

from attittud.basis.base import Basis, Refresh
from attittud.basis.canonical import Canonical
from attittud.basis.exact import Exact
from attittud.basis.mean import Mean
from attittud.basis.random import Random
from attittud.basis.sketch import Sketch
from attittud.basis.svd import Svd
from attittud.eta import choose

_BASES: dict[str, type[Basis]] = {basis.name: basis for basis in (Sketch, Svd, Exact, Mean, Random, Canonical)}


def make_basis(name: str) -> Basis:
    return choose("basis", name, _BASES)()


__all__ = ["Basis", "Refresh", "make_basis"]
