"""What out-of-fold predictions decide: after how many steps a model is best, and which to mix."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attittud_lab.data.source import Rows
from attittud_lab.data.tasks import Task
from attittud_lab.errors import InputError, listed
from attittud_lab.training.evaluate import figures, has_both

Numbers = npt.NDArray[np.float64]
_TINY = 1e-12
"""The smallest probability that counts: with 0, a single certain error would decide everything."""
_ROUNDING = 1e-9
"""Log-losses closer than this are equal."""


@dataclass(frozen=True)
class HeldOut:
    """The examples that are held out once, fold by fold, and their targets."""

    task: Task
    targets: Tensor
    folds: Rows
    """The fold of each example."""
    metric: str

    def figures(self, outputs: Tensor) -> dict[str, float]:
        """Return the figures of out-of-fold outputs (n x classes).

        With several labels at once, an area under the ROC curve is the mean over the folds in which
        it is defined, because the scores of the models of two folds have no common order.
        """
        values = figures(self.task, outputs, self.targets)
        if not self.task.several:
            return values
        defined: dict[str, list[float]] = defaultdict(list)
        for fold in np.unique(self.folds):
            part = torch.from_numpy(self.folds == fold)
            for name, value in figures(self.task, outputs[part], self.targets[part]).items():
                if not math.isnan(value):
                    defined[name].append(value)
        for name in values:
            if name.startswith("auc"):
                values[name] = fmean(defined[name] or [math.nan])
        return values

    def check(self) -> None:
        """Refuse labels on which the metric is not defined in any fold."""
        parts = [self.targets[self.folds == fold].numpy() for fold in np.unique(self.folds)]
        if self.metric != "auc" or any(has_both(part).any() for part in parts):
            return
        where = "in one split"
        if len(parts) > 1:
            where = f"in {len(parts)} folds"
        counts = map(str, self.targets.sum(0).tolist())
        positive = listed(map(" ".join, zip(self.task.classes, counts, strict=True)), 10)
        raise InputError(
            f"data.primary: {len(self.targets)} labelled examples are held out {where} (positive: "
            f"{positive}); no label has both positive and negative examples in any of them, so the AUC "
            "to choose by is not defined. Give examples of both kinds, or use training.metric: macro_f1"
        )

    def likely(self, outputs: Tensor) -> Numbers:
        """Return the probabilities of classes (or of yes) for outputs, both n x classes."""
        return probabilities(outputs, several=self.task.several)

    def losses(self, likely: Numbers) -> Numbers:
        """Return the log-loss of each example, given probabilities; with several labels at once, the
        mean over the labels.
        """
        right = right_answers(likely, self.targets.numpy())
        return np.asarray((-np.log(np.maximum(right, _TINY))).mean(1))

    def loss(self, likely: Numbers) -> float:
        """Return the mean log-loss of probabilities."""
        return float(self.losses(likely).mean())


def probabilities(outputs: Tensor, *, several: bool) -> Numbers:
    """Return the probabilities of outputs, both n x classes: those of yes for `several` labels at
    once, else those of one class.
    """
    scores = outputs.double()
    if several:
        return np.asarray(scores.sigmoid().numpy())
    return np.asarray(scores.softmax(1).numpy())


def right_answers(likely: Numbers, targets: npt.NDArray[Any]) -> Numbers:
    """Return the probabilities of the right answers: n x 1, or n x labels with several labels at
    once, where yes and no are answers.
    """
    if targets.ndim == 2:
        return np.where(targets == 1, likely, 1 - likely)
    return np.take_along_axis(likely, targets[:, None], axis=1)


@dataclass(frozen=True)
class Curve:
    """The out-of-fold score and log-loss of a candidate at each look."""

    scores: Sequence[float]
    losses: Sequence[float]
    second_phase_start: int = 0
    """The first look of the second phase; 0 or the number of looks if there is one phase alone.
    Looks of two phases are not smoothed together, because a new head starts low.
    """
    count: int = 0
    """How many examples were held out; 0 if their number should be ignored."""

    @classmethod
    def of(cls, looks: Sequence[Tensor], held_out: HeldOut, second_phase_start: int = 0) -> Curve:
        """Measure the out-of-fold outputs of each look, n x classes.

        `second_phase_start` is the first look of the second phase. A score that is not defined
        counts as -inf, worse than all others.
        """
        scores = []
        losses = []
        for outputs in looks:
            values = held_out.figures(outputs)
            score = values[held_out.metric]
            if math.isnan(score):
                score = -math.inf
            scores.append(score)
            losses.append(values["loss"])
        return cls(scores, losses, second_phase_start, len(held_out.targets))

    @property
    def best(self) -> int:
        """The look at which the model is taken: the latest one within a standard error of the best
        smoothed score.

        So few labels cannot tell such looks apart, and at later ones the learning rate is lower and
        the averaged weights have settled. On development pairs this rule gains 0.35 points over the
        look with the best score.
        """
        values = self.smoothed
        # The best score; among equal ones the lowest log-loss, then the earliest look.
        top = max(range(len(values)), key=lambda look: (*values[look], -look))
        score = values[top][0]
        if not self.count or not 0 < score < 1:  # no standard error can be computed
            return top
        error = math.sqrt(score * (1 - score) / self.count)  # as if it were an accuracy
        return max(look for look in range(len(values)) if values[look][0] >= score - error)

    @property
    def smoothed(self) -> list[tuple[float, float]]:
        """(score, -loss) of each look, as means over the look and its neighbours of the same
        phase.
        """
        scores = _smooth(self.scores, self.second_phase_start)
        losses = _smooth(self.losses, self.second_phase_start)
        return [(score, -loss) for score, loss in zip(scores, losses, strict=True)]

    @property
    def value(self) -> tuple[float, float]:
        """Smoothed score and −log-loss of the best look. They rank candidates, the log-loss among
        equal scores; larger is better.
        """
        return self.smoothed[self.best]


def _smooth(values: Sequence[float], second_phase_start: int) -> list[float]:
    """Return means over each look and its neighbours in the same phase."""
    means: list[float] = []
    for phase in (values[:second_phase_start], values[second_phase_start:]):
        means += [fmean(phase[max(0, i - 1) : i + 2]) for i in range(len(phase))]
    return means


def greedy(
    likely: Mapping[str, Numbers], held_out: HeldOut, first: str, picks: int
) -> dict[str, int]:
    """Count how often each candidate is picked for a mean of probabilities (Caruana et al. 2004,
    with replacement).

    `likely` has the out-of-fold probabilities of each candidate, n x classes. There are at most
    `picks` picks, and the first one is the candidate `first`, the best. After k picks with the sum
    S of probabilities, the next one is the candidate c with the lowest log-loss of
    (S + p_c) / (k + 1). The shortest series of picks with the lowest loss is kept, so that no pick
    is useless; losses that differ by rounding alone count as equal. Candidates without a pick are
    left out of the result, and the counts have no common divisor.
    """
    series = [first]
    total = likely[first].copy()
    losses = [held_out.loss(total)]
    while len(series) < picks:
        after = {}
        for label, part in likely.items():
            after[label] = held_out.loss((total + part) / (len(series) + 1))
        best = min(after, key=lambda label: after[label])
        series.append(best)
        losses.append(after[best])
        total += likely[best]
    low_enough = min(losses) + _ROUNDING
    shortest = next(number for number, loss in enumerate(losses, 1) if loss <= low_enough)
    picked = Counter(series[:shortest])
    common = math.gcd(*picked.values())
    return {label: picked[label] // common for label in likely if label in picked}


def mixed(likely: Mapping[str, Numbers], picks: Mapping[str, int], *, several: bool) -> Tensor:
    """Return scores of the weighted mean of probabilities, as a model of several members gives
    them.
    """
    mean = sum(likely[label] * count for label, count in picks.items()) / sum(picks.values())
    probabilities = torch.from_numpy(np.asarray(mean)).float()
    if several:
        return torch.logit(probabilities, 1e-7)
    return probabilities.clamp(min=1e-30).log()
