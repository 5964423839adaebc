"""Learners by name: what is fitted to features. Each is one file, and one entry here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from attittud_lab.errors import unknown
from attittud_lab.learners.base import (
    Fitted,
    Numbers,
    Setting,
    Settings,
    SimpleLearner,
    TrainingRows,
)
from attittud_lab.learners.kernel import Kernel
from attittud_lab.learners.linear import Linear
from attittud_lab.learners.trees import Boosting, ExtraTrees

_ALL = (Linear(), Kernel(), ExtraTrees(), Boosting())
_LEARNERS: dict[str, SimpleLearner] = {learner.name: learner for learner in _ALL}


def learners() -> list[str]:
    """Return the names of all learners, the simplest first."""
    return list(_LEARNERS)


def find_learner(name: str) -> SimpleLearner:
    """Return the learner of a name; the error for an unknown name offers the nearest one."""
    if name not in _LEARNERS:
        raise unknown("learner", name, _LEARNERS)
    return _LEARNERS[name]


def restore_fitted(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Fitted:
    """Make a model from what `plain_fitted` returned."""
    values = dict(plain)
    for name, tensor in tensors.items():
        values[name] = tensor.numpy()
    model = find_learner(values.pop("learner")).fitted
    return model(**values)


def plain_fitted(fitted: Fitted) -> dict[str, Any]:
    """Return `fitted.plain()` with the name of its learner, so that `restore_fitted` can read
    it.
    """
    return {"learner": fitted.learner, **fitted.plain()}


__all__ = [
    "Fitted",
    "Numbers",
    "Setting",
    "Settings",
    "SimpleLearner",
    "TrainingRows",
    "find_learner",
    "learners",
    "plain_fitted",
    "restore_fitted",
]
