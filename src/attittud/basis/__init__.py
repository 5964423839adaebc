"""Bases by name. A basis spans the subspace in which the two tasks are compared."""

from collections.abc import Mapping
from typing import Any

import torch

from attittud.basis.base import Basis, Refresh, orthonormal_rows
from attittud.basis.canonical import Canonical
from attittud.basis.exact import Exact
from attittud.basis.implicit import Implicit
from attittud.basis.mean import Mean
from attittud.basis.metric import in_metric
from attittud.basis.random import Random
from attittud.basis.running_mean import RunningMean
from attittud.basis.sets import Sets
from attittud.basis.sketch import Sketch
from attittud.basis.svd import Svd
from attittud.basis.tensorwise import tensorwise
from attittud.engine import BASIS_AS_ENGINE
from attittud.engine.auto import Auto
from attittud.eta import choose

_BASES: dict[str, type[Basis]] = {
    basis.name: basis for basis in (Sketch, Svd, Exact, Mean, RunningMean, Sets, Random, Canonical, Implicit)
}


def register_basis(basis: type[Basis]) -> type[Basis]:
    """Register a basis under its `name` for `Guide(basis=...)`; a decorator. The interface may still change."""
    _BASES[basis.name] = basis
    return basis


def bases() -> tuple[str, ...]:
    """Return the names that `Guide(basis=...)` accepts."""
    return tuple(_BASES)


def make_basis(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    scope: str = "model",
    metric: str = "euclidean",
    optimizer: torch.optim.Optimizer | None = None,
) -> Basis:
    kind, options = choose("basis", name, _BASES), options or {}
    if scope == "tensor":
        kind = tensorwise(kind)
    if metric == "adam":
        kind = in_metric(kind, optimizer)
    others = {"scope": scope} if scope != "model" else {}
    others |= {"metric": metric} if metric != "euclidean" else {}
    told = ", ".join(f"{key}={value!r}" for key, value in {**options, **others}.items())
    if told:
        kind = type(kind.__name__, (kind,), {"label": f"{name}({told})"})
    try:
        return kind(**options)
    except TypeError as error:
        raise TypeError(f"basis_options={dict(options)!r} do not fit basis={name!r}: {error}") from error


def respelled(basis: str, engine: str) -> tuple[str, str]:
    """Return the current names of basis and engine, if a user gave the basis as the engine, as in old versions."""
    if engine != BASIS_AS_ENGINE:
        return basis, engine
    meant = _BASES[engine]
    if basis not in (meant.same_as, meant.name):
        raise ValueError(
            f"engine={engine!r} always uses basis={meant.same_as!r}, without storing it, and cannot use basis={basis!r}; pass "
            f"basis={meant.same_as!r}, or another engine"
        )
    return meant.name, Auto.name


__all__ = ["Basis", "Refresh", "bases", "make_basis", "orthonormal_rows", "register_basis", "respelled"]
