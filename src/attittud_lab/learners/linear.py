"""The linear learner: multinomial logistic regression, or one logistic regression for each of
several labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attittud_lab.features.base import Matrix
from attittud_lab.learners.base import Fitted, Numbers, Settings, SimpleLearner, TrainingRows
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

    def logits(self, features: Matrix) -> Numbers:
        return np.asarray(features @ self.weights, dtype=np.float64) + self.intercept


class Linear(SimpleLearner):
    """Logistic regression with a penalty that the folds choose."""

    name = "linear"
    fitted = LinearModel

    def settings(self, several: bool) -> Settings:
        return [{"penalty": penalty} for penalty in PENALTIES]

    def fewer_settings(self, several: bool) -> Settings:
        return [{"penalty": penalty} for penalty in PENALTIES[1::2]]

    def fits(
        self, rows: TrainingRows, settings: Settings, seed: int, start: Fitted | None = None
    ) -> Iterator[Fitted]:
        """Yield a model for each penalty; the search begins at `start` if that is linear too."""
        regressions = LogisticRegressions(rows)
        penalties = [setting["penalty"] for setting in settings]
        near_solution = None
        if isinstance(start, LinearModel):
            near_solution = (start.weights, start.intercept)
        for weights, intercept in regressions.solve(penalties, near_solution):
            yield LinearModel(weights, intercept, rows.several)
