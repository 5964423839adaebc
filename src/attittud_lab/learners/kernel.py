"""The kernel learner: logistic regression on a Gaussian kernel of the features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from attittud_lab.features.base import Matrix
from attittud_lab.learners.base import (
    Fitted,
    Numbers,
    Settings,
    SimpleLearner,
    TrainingRows,
    dense,
)
from attittud_lab.learners.logistic import LogisticRegressions

PENALTIES = (1.0, 0.2, 0.04, 0.008)
WIDTHS = (0.5, 1.0, 2.0)
"""Widths of the kernel, as multiples of the median distance of two rows."""
MOST_LANDMARKS = 400
"""With more rows, this many of them stand for all (Nyström)."""
_SMALLEST = 1e-8


@dataclass(frozen=True)
class KernelModel(Fitted):
    """A weighted sum of kernels k(x, l) = exp(−‖x − l‖² / (2 width²)) of landmarks l, plus an
    intercept.
    """

    learner: ClassVar[str] = "kernel"
    landmarks: npt.NDArray[np.float32]
    width: float
    weights: Numbers
    """landmarks x classes."""
    intercept: Numbers
    several: bool

    def logits(self, features: Matrix) -> Numbers:
        return gaussian(dense(features), self.landmarks, self.width) @ self.weights + self.intercept


class Kernel(SimpleLearner):
    """Logistic regression whose features are kernels of landmarks, rotated so that they have the
    kernel's products.
    """

    name = "kernel"
    fitted = KernelModel
    dense_only = True

    def settings(self, several: bool) -> Settings:
        pairs = product(WIDTHS, PENALTIES)
        return [{"penalty": penalty, "width": width} for width, penalty in pairs]

    def fewer_settings(self, several: bool) -> Settings:
        return [{"penalty": penalty, "width": 1.0} for penalty in PENALTIES[1:]]

    def fits(
        self, rows: TrainingRows, settings: Settings, seed: int, start: Fitted | None = None
    ) -> Iterator[Fitted]:
        """Yield a model for each setting; settings of one width, which follow each other, share the
        kernel.
        """
        features = dense(rows.features)
        order = np.random.default_rng(seed).permutation(len(features))
        landmarks = features[np.sort(order[:MOST_LANDMARKS])]
        median = median_distance(landmarks)
        for relative_width, of_width in groupby(settings, key=itemgetter("width")):
            width = relative_width * median
            # With K = U diag(λ) Uᵀ between landmarks, the columns k(x, landmarks) U / √λ have the
            # kernel as their products, so their weights get the penalty of a kernel machine.
            values, vectors = eigh(gaussian(landmarks, landmarks, width))
            large = values > _SMALLEST * values[-1]
            rotation = vectors[:, large] / np.sqrt(values[large])
            columns = np.asarray(gaussian(features, landmarks, width) @ rotation, dtype=np.float64)
            regressions = LogisticRegressions(replace(rows, features=columns))
            penalties = [setting["penalty"] for setting in of_width]
            for rotated_weights, intercept in regressions.solve(penalties):
                weights = rotation @ rotated_weights
                yield KernelModel(landmarks, width, weights, intercept, rows.several)


def gaussian(first: npt.NDArray[Any], second: npt.NDArray[Any], width: float) -> Numbers:
    """Return exp(−‖x − y‖² / (2 width²)) for all pairs of rows."""
    result: Numbers = np.exp(-squared_distances(first, second) / (2 * width**2))
    return result


def squared_distances(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Numbers:
    """Return ‖x − y‖² = ‖x‖² + ‖y‖² − 2 x · y for all pairs of rows."""
    left = first.astype(np.float64)
    right = second.astype(np.float64)
    lengths = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1)
    distances: Numbers = np.maximum(lengths - 2 * left @ right.T, 0)
    return distances


def median_distance(rows: npt.NDArray[Any]) -> float:
    """Return the median distance of all pairs of rows; 1 if there is no pair, or if it is 0."""
    above_diagonal = np.triu_indices(len(rows), k=1)
    squares = squared_distances(rows, rows)[above_diagonal]
    if not squares.any():
        return 1.0
    return float(np.sqrt(np.median(squares))) or 1.0
