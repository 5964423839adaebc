"""The interface of a learner: features and soft targets go in, scores come out, and models are kept
without pickle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from attittud_lab.features.base import Matrix

Numbers = npt.NDArray[np.float64]
Setting = Mapping[str, float]
"""What is chosen on the folds, such as the strength of a penalty."""
Settings = Sequence[Setting]
"""What it is chosen from."""
LOWEST = 1e-6
"""The smallest probability that a model claims. Zero would make one error decide a log-loss."""
ABSENT = -12.0
"""The logit of a class without training rows."""


@dataclass(frozen=True)
class TrainingRows:
    """Rows of features with soft targets and weights.

    For classes, a row of `targets` has non-negative weights of the classes, which usually sum to 1.
    With several labels at once it has the probability of each label, NaN where a label is missing.
    """

    features: Matrix
    """rows x width."""
    targets: Numbers
    """rows x classes, or rows x labels."""
    several: bool
    """Whether a row may have several labels at once."""
    weights: Numbers
    """A weight for each row, not negative."""


class Fitted(ABC):
    """A trained model that gives scores for rows of features.

    A subclass is a dataclass of arrays and of values that JSON can hold.
    """

    learner: ClassVar[str]
    """The name of the learner that made it."""
    several: bool

    @abstractmethod
    def logits(self, features: Matrix) -> Numbers:
        """Return a number for each row and class, which need not be normalised."""

    def scores(self, features: Matrix) -> Numbers:
        """Return log-probabilities, rows x classes; with several labels at once logits, rows x
        labels.
        """
        logits = self.logits(features)
        if self.several:
            return logits
        return log_softmax(logits)

    def plain(self) -> dict[str, Any]:
        """Return everything but arrays, as JSON can hold it."""
        plain = dict(vars(self))
        for name in self.tensors():
            del plain[name]
        return plain

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays, as safetensors can hold them."""
        tensors = {}
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                tensors[name] = torch.from_numpy(np.ascontiguousarray(value))
        return tensors


class SimpleLearner(ABC):
    """Fits a model to features in seconds, without a network."""

    name: ClassVar[str]
    fitted: ClassVar[type[Fitted]]
    dense_only: ClassVar[bool] = False
    """Whether sparse features are refused."""
    slowness: ClassVar[int] = 1
    """Where a learner is fitted many times, it gets the rows divided by this number."""

    @abstractmethod
    def settings(self, several: bool) -> Settings:
        """Return the settings that folds choose from."""

    def fewer_settings(self, several: bool) -> Settings:
        """Return the settings for uses that fit several models for each."""
        return self.settings(several)

    @abstractmethod
    def fits(
        self, rows: TrainingRows, settings: Settings, seed: int, start: Fitted | None = None
    ) -> Iterator[Fitted]:
        """Yield one model for each setting, in the order of `settings`.

        Args:
            rows: what the models are fitted to.
            settings: some of `settings()`. What they share is computed once.
            seed: of everything random.
            start: a model that is probably near the first one. It saves time and may be ignored.
        """

    def fit(
        self, rows: TrainingRows, setting: Setting, seed: int, start: Fitted | None = None
    ) -> Fitted:
        """Return the model of one setting."""
        return next(iter(self.fits(rows, [setting], seed, start)))


def is_sparse(features: Matrix) -> TypeGuard[sparse.csr_matrix]:
    """Whether zeros are left out of the matrix."""
    return bool(sparse.issparse(features))


def stack_rows(parts: Sequence[Matrix]) -> Matrix:
    """Return the rows of all parts below each other, sparse if all are."""
    if len(parts) == 1:
        return parts[0]
    if all(map(is_sparse, parts)):
        return sparse.vstack(parts, format="csr")
    return np.concatenate(list(map(dense, parts)))


def stack_columns(parts: Sequence[Matrix]) -> Matrix:
    """Return the columns of all parts next to each other, sparse if any part is."""
    if any(map(is_sparse, parts)):
        return sparse.hstack(parts, format="csr", dtype=np.float32)
    return np.concatenate(parts, axis=1)


def dense(features: Matrix) -> npt.NDArray[np.float32]:
    """Return features as an array, rows x width."""
    if is_sparse(features):
        return np.asarray(features.toarray(), dtype=np.float32)
    return np.asarray(features, dtype=np.float32)


def log_softmax(logits: Numbers) -> Numbers:
    """Normalise each row, without overflow."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Numbers = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def floored_log(probabilities: npt.NDArray[Any]) -> Numbers:
    """Return log((1 − LOWEST) p + LOWEST / classes) for probabilities p, rows x classes, so that no
    probability is zero.
    """
    count = probabilities.shape[1]
    mixed: Numbers = np.log((1 - LOWEST) * probabilities.astype(np.float64) + LOWEST / count)
    return mixed


def sigmoid(logits: Numbers) -> Numbers:
    """Return 1 / (1 + exp(-z)), without overflow."""
    result: Numbers = 0.5 * (1 + np.tanh(0.5 * logits))
    return result
