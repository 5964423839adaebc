"""The three weights of the decomposition, and named presets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Real
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Eta:
    """Weights of the neutral, helpful and harmful part of an auxiliary gradient, in the paper's
    order.

    1 keeps a part, 0 drops it, a negative weight reverses it. No choice is safe for every auxiliary
    data set: wrong labels, for example, often do their harm in the neutral part.

    >>> Eta(neutral=1, helpful=1, harmful=-1)
    Eta(neutral=1.0, helpful=1.0, harmful=-1.0)
    """

    neutral: float
    helpful: float
    harmful: float

    def __post_init__(self) -> None:
        for field in fields(self):
            weight = check_weight(f"Eta.{field.name}", getattr(self, field.name))
            object.__setattr__(self, field.name, weight)


def check_weight(name: str, value: object) -> float:
    """Return a weight as a number; the error names the argument."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)


_PRESETS: dict[str, dict[str, Any]] = {
    "primary_only": {"eta": Eta(neutral=0, helpful=0, harmful=0), "primary_weight": 1.0},
    "pretrain": {"eta": Eta(neutral=1, helpful=1, harmful=1), "primary_weight": 0.0},
    "multitask": {"eta": Eta(neutral=1, helpful=1, harmful=1), "primary_weight": 1.0},
    # One-sided PCGrad compares with the current mean gradient, so its basis is recomputed in every
    # step.
    "pcgrad": {"eta": Eta(neutral=1, helpful=1, harmful=0), "basis": "mean", "refresh_every": 1},
    "drop_harmful": {"eta": Eta(neutral=1, helpful=1, harmful=0)},
    "orthogonal": {"eta": Eta(neutral=1, helpful=0, harmful=0)},
    "helpful_only": {"eta": Eta(neutral=0, helpful=1, harmful=0)},
    "flip": {"eta": Eta(neutral=1, helpful=1, harmful=-1)},
    "orthogonal_flip": {"eta": Eta(neutral=1, helpful=0, harmful=-1)},
}


def presets() -> tuple[str, ...]:
    """Return the names that `preset` accepts."""
    return tuple(_PRESETS)


def preset(name: str) -> dict[str, Any]:
    """Return the keyword arguments of a `Guide` for a name from `presets()`.

    >>> preset("drop_harmful")
    {'eta': Eta(neutral=1.0, helpful=1.0, harmful=0.0)}
    """
    return dict(choose("preset", name, _PRESETS))


def choose(kind: str, name: object, table: Mapping[str, T]) -> T:
    """Look up a name in a table; the error for an unknown name suggests the closest name and lists
    all valid names.
    """
    if isinstance(name, str) and name in table:
        return table[name]
    near = get_close_matches(str(name), table, n=1)
    hint = ""
    if near:
        hint = f" Did you mean {near[0]!r}?"
    raise ValueError(f"unknown {kind} {name!r}.{hint} Choose one of {', '.join(map(repr, table))}.")
