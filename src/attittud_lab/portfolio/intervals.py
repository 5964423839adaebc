"""95 % intervals of out-of-fold scores and of their differences, from draws of the held-out
examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attittud_lab.portfolio.choose import HeldOut, Numbers

RESAMPLES = 500
"""How many draws of the held-out examples an interval is made from."""
FEWEST_GROUPS = 6
"""Draws of fewer groups repeat each other, so their interval would say nothing about other
groups.
"""


class Intervals:
    """Draws of the held-out examples, or of their groups, if there are any.

    All candidates get the same draws, so that differences are paired. The intervals describe other
    examples of the same kind; they ignore that the same examples chose the best candidate. With
    fewer than `FEWEST_GROUPS` groups they are undefined.
    """

    def __init__(self, held_out: HeldOut, groups: Sequence[str] | None, seed: int) -> None:
        generator = np.random.default_rng(seed)
        count = len(held_out.targets)
        self.held_out = held_out
        self.few: int | None = None
        """How many groups there are, if they are too few for an interval; else None."""
        self._scores: dict[int, tuple[Tensor, Numbers]] = {}
        """Outputs and their scores, by the identity of the outputs: a baseline is compared with
        many others.
        """
        if groups is None:
            self.draws = [generator.integers(count, size=count) for _ in range(RESAMPLES)]
            return
        numbers = np.unique(groups, return_inverse=True)[1]
        members = [np.flatnonzero(numbers == group) for group in range(numbers.max() + 1)]
        if len(members) < FEWEST_GROUPS:
            self.few = len(members)
        self.draws = []
        for _ in range(RESAMPLES):
            drawn = generator.integers(len(members), size=len(members))
            self.draws.append(np.concatenate([members[group] for group in drawn]))

    def scores(self, outputs: Tensor) -> Numbers:
        """Return the score of outputs (n x classes) in each draw; NaN with too few groups."""
        if self.few is not None:
            return np.full(len(self.draws), math.nan)
        if id(outputs) not in self._scores:
            score = _SCORES[self.held_out.metric]
            targets = self.held_out.targets.numpy()
            drawn = score(outputs.double().numpy(), targets, self.held_out.folds, self.draws)
            self._scores[id(outputs)] = (outputs, drawn)
        return self._scores[id(outputs)][1]

    @staticmethod
    def ends(scores: Numbers) -> tuple[float, float]:
        """Return the 2.5 % and 97.5 % quantiles of the defined scores."""
        defined = scores[np.isfinite(scores)]
        if len(defined) == 0:
            return math.nan, math.nan
        low, high = np.quantile(defined, [0.025, 0.975])
        return float(low), float(high)

    def difference(self, outputs: Tensor, reference: Tensor) -> dict[str, float]:
        """Return a score minus that of a reference, and the interval of the difference."""
        score = self.held_out.figures(outputs)[self.held_out.metric]
        of_reference = self.held_out.figures(reference)[self.held_out.metric]
        low, high = self.ends(self.scores(outputs) - self.scores(reference))
        return {"difference": score - of_reference, "low": low, "high": high}

    def is_perfect(self, outputs: Tensor) -> bool:
        """Whether a score is within a standard error of 1; not if the error is undefined."""
        drawn = self.scores(outputs)
        score = self.held_out.figures(outputs)[self.held_out.metric]
        return bool(1 - score <= np.std(drawn, ddof=1))

    def error(self, outputs: Tensor, reference: Tensor) -> float:
        """Return the standard error of the difference of two scores; NaN where it is undefined."""
        drawn = self.scores(outputs) - self.scores(reference)
        defined = drawn[np.isfinite(drawn)]
        if len(defined) < 2:
            return math.nan
        return float(defined.std(ddof=1))


def guess(scores: Tensor, intervals: Intervals) -> dict[str, Any]:
    """Compare a model with the best guess that is the same for every example.

    That is the most frequent class, or one answer for each label. `scores` are the model's, n x
    classes. The result has the frequent `class` (None with several labels at once), the guess's
    `score`, the model's `difference` from it with its interval, and whether the guess is `beaten`.
    A model whose score is not defined is not shown to be better.
    """
    held_out = intervals.held_out
    targets = held_out.targets
    task = held_out.task
    metric = held_out.metric
    name = None
    if task.several and metric == "macro_f1":
        # A label that is never predicted has an F1 of 0, however rare it is.
        always = torch.ones(len(task.classes))
    elif task.several:
        always = torch.logit(targets.double().mean(0), 1e-6)
    else:
        counts = targets.bincount(minlength=len(task.classes))
        always = (counts + 1).double().log()  # scores, one for each class; + 1 keeps them finite
        name = str(task.classes[int(counts.argmax())])
    outputs = always.float().expand(len(targets), -1)
    constant = held_out.figures(outputs)[metric]
    difference = held_out.figures(scores)[metric] - constant
    drawn = intervals.scores(scores)
    if metric == "auc":
        drawn = drawn - 0.5  # the area of a constant in every draw
    else:
        drawn = drawn - intervals.scores(outputs)
    low, high = intervals.ends(drawn)
    lead = low
    if math.isnan(low):
        # Without an interval, a model that is ahead gets the benefit of the doubt.
        lead = difference
    return {
        "class": name,
        "score": constant,
        "difference": difference,
        "low": low,
        "high": high,
        "beaten": lead > 0,
    }


# ----------------------------------------------------------------------------- scores of many draws
#
# Each function takes outputs (n x classes), targets (n, or n x labels), the fold of each example and
# the rows of each draw, and returns a score for each draw. The scores are those of
# `training.evaluate`, without an evaluation for each draw.


def _predicted(outputs: Numbers, targets: np.ndarray) -> np.ndarray:
    """Return the class of each example (n), or 0 and 1 for each label (n x labels)."""
    if targets.ndim == 1:
        return np.asarray(outputs.argmax(1))
    return np.asarray(outputs > 0).astype(np.int64)


def _accuracy(
    outputs: Numbers, targets: np.ndarray, _folds: np.ndarray, draws: Sequence[np.ndarray]
) -> Numbers:
    """Return the share of right predictions, of all labels where there are several at once."""
    right = (_predicted(outputs, targets) == targets).astype(np.float64)
    share = right.reshape(len(targets), -1).mean(1)
    return np.array([share[rows].mean() for rows in draws])


def _macro_f1(
    outputs: Numbers, targets: np.ndarray, _folds: np.ndarray, draws: Sequence[np.ndarray]
) -> Numbers:
    """Return the mean of 2 TP / (2 TP + FP + FN) over the classes or labels."""
    predicted = _predicted(outputs, targets)
    if targets.ndim == 2:
        is_positive = targets == 1
        predicted_positive = predicted == 1
    else:
        classes = np.arange(outputs.shape[1])
        is_positive = targets[:, None] == classes
        predicted_positive = predicted[:, None] == classes
    both = is_positive & predicted_positive
    scores = []
    for rows in draws:
        hits = both[rows].sum(0)
        total = is_positive[rows].sum(0) + predicted_positive[rows].sum(0)
        # A label without any examples counts as 0, a class without any examples does not count.
        is_counted = (total > 0) | (targets.ndim == 2)
        scores.append((2 * hits / np.maximum(total, 1))[is_counted].mean())
    return np.array(scores)


def _auc(
    outputs: Numbers, targets: np.ndarray, folds: np.ndarray, draws: Sequence[np.ndarray]
) -> Numbers:
    """Return the mean area under the ROC curve over the folds, each a mean over the labels.

    The area of a label is the share of pairs of a positive and a negative example whose outputs
    have the right order.
    """
    # Outputs are sorted once: a level is the rank of an output among the different outputs of its
    # label. Counting how often each level was drawn is ten times as fast as sorting every draw.
    levels = [np.unique(column, return_inverse=True)[1] for column in outputs.T]
    undefined: np.ndarray = np.asarray(np.isnan(outputs).any(1))

    def pairs_in_order(level: np.ndarray, labels: np.ndarray) -> float:
        """Count pairs of a positive and a lower negative example; a tie is half a pair."""
        positive = np.bincount(level[labels == 1], minlength=len(outputs))
        negative = np.bincount(level[labels == 0], minlength=len(outputs))
        return float(positive @ (np.cumsum(negative) - negative / 2))

    def area(rows: np.ndarray) -> float:
        """Return the mean area over the labels that have both kinds of examples in these rows."""
        labels = targets[rows]
        positive = labels.sum(0)
        negative = (1 - labels).sum(0)
        defined = np.flatnonzero((positive > 0) & (negative > 0))
        if len(defined) == 0 or undefined[rows].any():
            return math.nan
        areas = []
        for label in defined:
            pairs = pairs_in_order(levels[label][rows], labels[:, label])
            areas.append(pairs / (positive[label] * negative[label]))
        return float(np.mean(areas))

    def mean_area(rows: np.ndarray) -> float:
        """Return the mean over the folds in which the area is defined."""
        areas = [area(rows[folds[rows] == fold]) for fold in np.unique(folds[rows])]
        if not np.isfinite(areas).any():
            return math.nan
        return float(np.nanmean(areas))

    return np.array([mean_area(rows) for rows in draws])


_SCORES = {"accuracy": _accuracy, "macro_f1": _macro_f1, "auc": _auc}
