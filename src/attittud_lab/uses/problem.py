"""What is to be learned: primary examples, auxiliary sources, and a candidate that combines
features, learner and use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from attittud_lab.features.base import Matrix
from attittud_lab.learners import Numbers, TrainingRows

LabelNumbers = npt.NDArray[np.int64]
"""Class numbers (n), or zeros and ones (n x labels); -1 where there is none."""


@dataclass(frozen=True)
class SourceData:
    """The examples of one auxiliary source, with the same kind of features as the primary
    examples.
    """

    name: str
    features: Matrix
    labels: LabelNumbers
    """rows, or rows x labels where an example has several at once; -1 where there is none."""
    classes: Sequence[str]
    same_classes: bool = False
    """Whether the classes are the primary classes, in the same order."""

    @property
    def several(self) -> bool:
        """Whether an example may have several labels at once."""
        return self.labels.ndim == 2

    @property
    def labelled(self) -> SourceData:
        """The source without examples that have no label at all."""
        has_label: np.ndarray = self.labels >= 0
        if self.several:
            has_label = np.asarray(has_label.any(axis=1))
        if has_label.all():
            return self
        return self.rows(np.flatnonzero(has_label))

    def rows(self, rows: npt.NDArray[np.int64]) -> SourceData:
        """Return the source with some of its examples."""
        return replace(self, features=self.features[rows], labels=self.labels[rows])


@dataclass(frozen=True)
class Problem:
    """The primary examples that have labels, and the sources."""

    features: Matrix
    labels: LabelNumbers
    classes: Sequence[str]
    several: bool = False
    """Whether an example may have several labels at once."""
    sources: Mapping[str, SourceData] = field(default_factory=dict)

    def rows(self, rows: npt.NDArray[np.int64]) -> Problem:
        """Return the problem with some of the primary examples; the sources stay whole."""
        return replace(self, features=self.features[rows], labels=self.labels[rows])


@dataclass(frozen=True)
class SimpleCandidate:
    """One way to learn: which features, which learner, and which use of which sources."""

    features: str
    learner: str
    use: str
    sources: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name in tables, such as "tfidf, linear, translated reviews + shops"."""
        sources = " + ".join(self.sources)
        return f"{self.features}, {self.learner}, {self.use} {sources}".rstrip()


def soft_targets(labels: LabelNumbers, classes: int) -> Numbers:
    """Return labels as a learner reads them: one-hot rows, or with several labels 0, 1 and NaN for
    a missing one.
    """
    if labels.ndim == 2:
        return np.where(labels >= 0, labels, np.nan).astype(np.float64)
    targets = np.zeros((len(labels), classes))
    labelled = np.flatnonzero(labels >= 0)
    targets[labelled, labels[labelled]] = 1
    return targets


def training_rows(part: Problem | SourceData) -> TrainingRows:
    """Return the primary examples, or those of a source, with equal weights."""
    targets = soft_targets(part.labels, len(part.classes))
    return TrainingRows(part.features, targets, part.several, np.ones(len(targets)))


def log_loss(scores: Numbers, labels: LabelNumbers) -> float:
    """Return the mean log-loss of scores (n x classes) where there is a label.

    For classes, scores are log-probabilities and the mean is over examples. With several labels at
    once they are logits, and it is over all labels of all examples.
    """
    if labels.ndim == 2:
        losses = np.logaddexp(0, np.where(labels == 1, -scores, scores))
        return float(losses[labels >= 0].mean())
    rows = np.flatnonzero(labels >= 0)
    return float(-scores[rows, labels[rows]].mean())
