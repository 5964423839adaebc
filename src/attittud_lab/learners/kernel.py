"""The kernel learner: logistic regression on a Gaussian kernel of the features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from torch import Tensor

from attittud_lab.features.base import Matrix
from attittud_lab.learners.base import (
    Fitted,
    Numbers,
    Setting,
    SimpleLearner,
    as_tensor,
    dense,
    log_softmax,
    rows_of,
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

    def scores(self, features: Matrix) -> Numbers:
        logits = (
            gaussian(dense(features), self.landmarks, self.width) @ self.weights + self.intercept
        )
        return logits if self.several else log_softmax(logits)

    def plain(self) -> dict[str, Any]:
        return {"several": self.several, "width": self.width}

    def tensors(self) -> dict[str, Tensor]:
        return {
            "landmarks": as_tensor(self.landmarks),
            "weights": as_tensor(self.weights),
            "intercept": as_tensor(self.intercept),
        }

    @classmethod
    def restore(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> KernelModel:
        landmarks, weights, intercept = (
            tensors[name].numpy() for name in ("landmarks", "weights", "intercept")
        )
        return cls(landmarks, float(plain["width"]), weights, intercept, bool(plain["several"]))


class Kernel(SimpleLearner):
    """Logistic regression whose features are kernels of landmarks, rotated so that they have the
    kernel's products.
    """

    name = "kernel"
    fitted = KernelModel
    dense_only = True

    def settings(self, several: bool) -> Sequence[Setting]:
        return [{"penalty": penalty, "width": width} for width in WIDTHS for penalty in PENALTIES]

    def fewer_settings(self, several: bool) -> Sequence[Setting]:
        return [{"penalty": penalty, "width": 1.0} for penalty in PENALTIES[1:]]

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
        rows = dense(features)
        order = np.random.default_rng(seed).permutation(len(rows))
        landmarks = rows_of(rows, np.sort(order[:MOST_LANDMARKS]))
        median = median_distance(landmarks)
        for width in dict.fromkeys(setting["width"] for setting in settings):
            absolute = width * median
            values, vectors = eigh(gaussian(landmarks, landmarks, absolute))
            large = values > _SMALLEST * values[-1]
            rotation = vectors[:, large] / np.sqrt(values[large])
            columns = np.asarray(gaussian(rows, landmarks, absolute) @ rotation, dtype=np.float64)
            regressions = LogisticRegressions(columns, targets, weights, several)
            penalties = [setting["penalty"] for setting in settings if setting["width"] == width]
            for inner, intercept in regressions.solve(penalties):
                yield KernelModel(landmarks, absolute, rotation @ inner, intercept, several)


def gaussian(first: npt.NDArray[Any], second: npt.NDArray[Any], width: float) -> Numbers:
    """Return exp(−‖x − y‖² / (2 width²)) for all pairs of rows."""
    result: Numbers = np.exp(-squared_distances(first, second) / (2 * width**2))
    return result


def squared_distances(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Numbers:
    left = first.astype(np.float64)
    right = second.astype(np.float64)
    lengths = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1)
    distances: Numbers = np.maximum(lengths - 2 * left @ right.T, 0)
    return distances


def median_distance(rows: npt.NDArray[Any]) -> float:
    """Return the median distance of two different rows; 1 if most rows are equal."""
    above = np.triu_indices(len(rows), k=1)
    distances = squared_distances(rows, rows)[above]
    median = float(np.sqrt(np.median(distances))) if len(distances) else 0.0
    return median if median > 0 else 1.0
