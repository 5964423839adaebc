"""Learners of trees, by scikit-learn: extra trees and gradient boosting, for tables.

A model is kept as arrays. Our own few lines walk through them, and a test compares them with
scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, GradientBoostingClassifier
from torch import Tensor

from attittud_lab.features.base import Matrix
from attittud_lab.learners.base import (
    ABSENT,
    Fitted,
    Numbers,
    Setting,
    SimpleLearner,
    as_tensor,
    dense,
    floored_log,
    log_softmax,
)

LEAF = -1
"""The child of a leaf, as scikit-learn writes it."""


@dataclass(frozen=True)
class Forest:
    """Many trees in one list of nodes; a child is the number of its node in this list."""

    roots: npt.NDArray[np.int64]
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    threshold: Numbers
    values: Numbers
    """nodes x outputs."""

    @classmethod
    def of(cls, trees: Sequence[Any], values: Sequence[Numbers]) -> Forest:
        """Join the trees of scikit-learn (attribute `tree_`), with nodes x outputs values of
        each.
        """
        sizes = [tree.node_count for tree in trees]
        roots = np.cumsum([0, *sizes[:-1]])
        left = [shifted(tree.children_left, root) for tree, root in zip(trees, roots, strict=True)]
        right = [
            shifted(tree.children_right, root) for tree, root in zip(trees, roots, strict=True)
        ]
        column = np.concatenate([tree.feature for tree in trees]).astype(np.int64)
        threshold = np.concatenate([tree.threshold for tree in trees])
        return cls(
            roots,
            np.concatenate(left),
            np.concatenate(right),
            column,
            threshold,
            np.concatenate(values),
        )

    def leaves(self, features: npt.NDArray[np.float32]) -> Iterator[Numbers]:
        """Yield for each tree the values of the leaves that the rows reach, rows x outputs."""
        rows = np.arange(len(features))
        for root in self.roots:
            nodes = np.full(len(features), root)
            inside = rows if self.left[root] != LEAF else rows[:0]
            while len(inside):
                current = nodes[inside]
                goes_left = features[inside, self.column[current]] <= self.threshold[current]
                nodes[inside] = np.where(goes_left, self.left[current], self.right[current])
                inside = inside[self.left[nodes[inside]] != LEAF]
            yield self.values[nodes]

    def tensors(self) -> dict[str, Tensor]:
        return {name: as_tensor(array) for name, array in vars(self).items()}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor]) -> Forest:
        names = ("roots", "left", "right", "column", "threshold", "values")
        return cls(*(tensors[name].numpy() for name in names))


def shifted(children: npt.NDArray[np.int64], root: np.int64) -> npt.NDArray[np.int64]:
    """Return the children of a tree as numbers of nodes in the list of all trees."""
    return np.where(children == LEAF, LEAF, children + root)


@dataclass(frozen=True)
class ExtraTreesModel(Fitted):
    """The mean over trees of the shares of the classes in a leaf."""

    learner: ClassVar[str] = "extra trees"
    forest: Forest
    classes: npt.NDArray[np.int64]
    """The classes that the outputs of the trees belong to."""
    count: int
    """The number of all classes or labels."""
    several: bool

    def scores(self, features: Matrix) -> Numbers:
        total = np.zeros((features.shape[0], len(self.classes)))
        for values in self.forest.leaves(dense(features)):
            total += values
        shares = np.zeros((features.shape[0], self.count))
        shares[:, self.classes] = total / len(self.forest.roots)
        if not self.several:
            return floored_log(shares)
        both = floored_log(np.stack([1 - shares.ravel(), shares.ravel()], axis=1).clip(0, 1))
        return (both[:, 1] - both[:, 0]).reshape(shares.shape)

    def plain(self) -> dict[str, Any]:
        return {"several": self.several, "count": self.count, "classes": self.classes.tolist()}

    def tensors(self) -> dict[str, Tensor]:
        return self.forest.tensors()

    @classmethod
    def restore(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        classes = np.array(plain["classes"], dtype=np.int64)
        return cls(Forest.restore(tensors), classes, int(plain["count"]), bool(plain["several"]))


class ExtraTrees(SimpleLearner):
    """Extremely randomised trees. A soft target becomes one row for each class, weighted by its
    share.
    """

    name = "extra trees"
    fitted = ExtraTreesModel
    dense_only = True
    trees: ClassVar[int] = 200

    def settings(self, several: bool) -> Sequence[Setting]:
        return [{"smallest_leaf": leaf} for leaf in (1, 3)]

    def fewer_settings(self, several: bool) -> Sequence[Setting]:
        return [{"smallest_leaf": 3}]

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
        for setting in settings:
            options = {
                "n_estimators": self.trees,
                "min_samples_leaf": int(setting["smallest_leaf"]),
                "random_state": seed,
            }
            if several:
                yield self._labels(rows, targets, weights, options)
            else:
                yield self._classes(rows, targets, weights, options)

    def _classes(
        self,
        rows: npt.NDArray[np.float32],
        targets: Numbers,
        weights: Numbers,
        options: Mapping[str, Any],
    ) -> ExtraTreesModel:
        numbers, labels, shares = hardened(targets, weights)
        forest = ExtraTreesClassifier(**options).fit(rows[numbers], labels, sample_weight=shares)
        trees = [estimator.tree_ for estimator in forest.estimators_]
        values = [
            tree.value[:, 0, :] / tree.value[:, 0, :].sum(axis=1, keepdims=True) for tree in trees
        ]
        return ExtraTreesModel(
            Forest.of(trees, values), forest.classes_, targets.shape[1], several=False
        )

    def _labels(
        self,
        rows: npt.NDArray[np.float32],
        targets: Numbers,
        weights: Numbers,
        options: Mapping[str, Any],
    ) -> ExtraTreesModel:
        """Regress on the labels; a missing one counts as the mean of the label, which tells the
        trees nothing.
        """
        used = weights > 0
        means = np.nan_to_num(np.nanmean(np.where(used[:, None], targets, np.nan), axis=0), nan=0.5)
        filled = np.where(np.isnan(targets), means, targets)
        forest = ExtraTreesRegressor(max_features="sqrt", **options)
        forest.fit(rows[used], filled[used], sample_weight=weights[used])
        trees = [estimator.tree_ for estimator in forest.estimators_]
        values = [tree.value[:, :, 0] for tree in trees]
        count = targets.shape[1]
        return ExtraTreesModel(Forest.of(trees, values), np.arange(count), count, several=True)


def hardened(
    targets: Numbers, weights: Numbers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Numbers]:
    """Return rows, classes and weights of soft targets: one entry for each class of a row that has
    a weight.
    """
    shares = targets * weights[:, None]
    rows, classes = np.nonzero(shares > 0)
    return rows, classes, shares[rows, classes]


@dataclass(frozen=True)
class BoostingModel(Fitted):
    """Logits of classes or labels: a start, plus `rate` times the sum of the trees that belong to
    each.
    """

    learner: ClassVar[str] = "boosting"
    forest: Forest
    logit: npt.NDArray[np.int64]
    """The class or label that each tree adds to."""
    start: Numbers
    rate: float
    several: bool

    def scores(self, features: Matrix) -> Numbers:
        logits = np.tile(self.start, (features.shape[0], 1))
        for column, values in zip(self.logit, self.forest.leaves(dense(features)), strict=True):
            logits[:, column] += self.rate * values[:, 0]
        return logits if self.several else log_softmax(logits)

    def plain(self) -> dict[str, Any]:
        return {"several": self.several, "rate": self.rate}

    def tensors(self) -> dict[str, Tensor]:
        return {
            **self.forest.tensors(),
            "logit": as_tensor(self.logit),
            "start": as_tensor(self.start),
        }

    @classmethod
    def restore(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        logit = tensors["logit"].numpy()
        start = tensors["start"].numpy()
        return cls(
            Forest.restore(tensors), logit, start, float(plain["rate"]), bool(plain["several"])
        )


class Boosting(SimpleLearner):
    """Gradient boosting of small trees, each on half of the rows. Several labels have a model
    each.
    """

    name = "boosting"
    fitted = BoostingModel
    dense_only = True
    rate: ClassVar[float] = 0.1

    def settings(self, several: bool) -> Sequence[Setting]:
        return [{"rounds": rounds} for rounds in (30, 100)]

    def fewer_settings(self, several: bool) -> Sequence[Setting]:
        return [{"rounds": 60}]

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
        most = int(max(setting["rounds"] for setting in settings))
        count = targets.shape[1]
        if several:
            parts = [
                self._label(rows, targets[:, label], weights, most, seed) for label in range(count)
            ]
            starts = np.array([logit for logit, _ in parts])
            columns = [[label] for label, (_, stages) in enumerate(parts) if stages]
            boosted = [stages for _, stages in parts if stages]
        else:
            starts, column, stages = self._classes(rows, targets, weights, most, seed)
            columns = [column] if stages else []
            boosted = [stages] if stages else []
        for setting in settings:
            used = int(setting["rounds"])
            rounds = chain.from_iterable(stages[:used] for stages in boosted)
            trees = list(chain.from_iterable(rounds))
            logit = np.concatenate([_NO_NODES, *(np.tile(column, used) for column in columns)])
            values = [tree.value[:, :, 0] for tree in trees]
            forest = Forest.of(trees, values) if trees else EMPTY
            yield BoostingModel(forest, logit, starts, self.rate, several)

    def _classes(
        self,
        rows: npt.NDArray[np.float32],
        targets: Numbers,
        weights: Numbers,
        rounds: int,
        seed: int,
    ) -> tuple[Numbers, list[int], list[list[Any]]]:
        """Return the start of each class, the classes that trees add to, and the trees of each
        round.
        """
        numbers, labels, shares = hardened(targets, weights)
        starts = np.full(targets.shape[1], ABSENT)
        present = np.unique(labels)
        if len(present) < 2:
            starts[present] = 0
            return starts, [], []
        model = self._boosted(rows[numbers], labels, shares, rounds, seed)
        prior = np.log(model.init_.class_prior_)
        starts[present] = prior
        if len(present) == 2:
            starts[present] = [0.0, prior[1] - prior[0]]
            present = present[1:]
        return starts, present.tolist(), stages_of(model)

    def _label(
        self,
        rows: npt.NDArray[np.float32],
        targets: Numbers,
        weights: Numbers,
        rounds: int,
        seed: int,
    ) -> tuple[float, list[list[Any]]]:
        """Return the start of one of several labels, and its trees."""
        observed = np.flatnonzero(~np.isnan(targets) & (weights > 0))
        both = np.stack([1 - targets[observed], targets[observed]], axis=1)
        starts, _, stages = self._classes(rows[observed], both, weights[observed], rounds, seed)
        return float(starts[1] - starts[0]), stages

    def _boosted(
        self,
        rows: npt.NDArray[np.float32],
        labels: npt.NDArray[np.int64],
        weights: Numbers,
        rounds: int,
        seed: int,
    ) -> GradientBoostingClassifier:
        model = GradientBoostingClassifier(
            n_estimators=rounds,
            learning_rate=self.rate,
            subsample=0.5,
            max_features="sqrt",
            random_state=seed,
        )
        return model.fit(rows, labels, sample_weight=weights)


def stages_of(model: GradientBoostingClassifier) -> list[list[Any]]:
    """Return the trees of each round."""
    return [[tree.tree_ for tree in stage] for stage in model.estimators_]


_NO_NODES = np.zeros(0, dtype=np.int64)
EMPTY = Forest(_NO_NODES, _NO_NODES, _NO_NODES, _NO_NODES, np.zeros(0), np.zeros((0, 1)))
"""The forest of a model that is constant."""
