"""The linear learner: multinomial logistic regression, or one logistic regression for each of
several labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from attittud_lab.features.base import Matrix
from attittud_lab.learners.base import (
    Fitted,
    Numbers,
    Setting,
    SimpleLearner,
    as_tensor,
    log_softmax,
)
from attittud_lab.learners.logistic import LogisticRegressions

PENALTIES = (10.0, 2.0, 0.5, 0.1, 0.02, 0.004)
"""C = 1 / penalty in scikit-learn, for features whose rows have length 1 on average."""


@dataclass(frozen=True)
class LinearModel(Fitted):
    """Weights and intercepts, width x classes and classes."""

    learner: ClassVar[str] = "linear"
    weights: Numbers
    intercept: Numbers
    several: bool

    def scores(self, features: Matrix) -> Numbers:
        logits = np.asarray(features @ self.weights, dtype=np.float64) + self.intercept
        return logits if self.several else log_softmax(logits)

    def plain(self) -> dict[str, Any]:
        return {"several": self.several}

    def tensors(self) -> dict[str, Tensor]:
        return {"weights": as_tensor(self.weights), "intercept": as_tensor(self.intercept)}

    @classmethod
    def restore(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LinearModel:
        return cls(tensors["weights"].numpy(), tensors["intercept"].numpy(), bool(plain["several"]))


class Linear(SimpleLearner):
    """Logistic regression with a penalty that the folds choose."""

    name = "linear"
    fitted = LinearModel

    def settings(self, several: bool) -> Sequence[Setting]:
        return [{"penalty": penalty} for penalty in PENALTIES]

    def fewer_settings(self, several: bool) -> Sequence[Setting]:
        return [{"penalty": penalty} for penalty in PENALTIES[1::2]]

    def fits(
        self,
        features: Matrix,
        targets: Numbers,
        weights: Numbers,
        several: bool,
        settings: Sequence[Setting],
        seed: int,
        start: Fitted | None = None,
    ) -> Iterator[Fitted]:
        regressions = LogisticRegressions(features, targets, weights, several)
        penalties = [setting["penalty"] for setting in settings]
        near = (start.weights, start.intercept) if isinstance(start, LinearModel) else None
        for inner, intercept in regressions.solve(penalties, near):
            yield LinearModel(inner, intercept, several)
