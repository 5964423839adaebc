"""Learners of trees, by scikit-learn: extra trees and gradient boosting, for tables.

A model is kept as arrays. Our own few lines walk through them, and a test compares them with
scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, GradientBoostingClassifier

from attittud_lab.features.base import Matrix
from attittud_lab.learners.base import (
    ABSENT,
    Fitted,
    Numbers,
    Settings,
    SimpleLearner,
    TrainingRows,
    dense,
    floored_log,
)

LEAF = -1
"""The child of a leaf, as scikit-learn writes it."""


@dataclass(frozen=True)
class TreesModel(Fitted):
    """All trees are in one list of nodes; a child is the number of its node in this list."""

    roots: npt.NDArray[np.int64]
    """The first node of each tree."""
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    threshold: Numbers
    values: Numbers
    """A number, or one for each output of the trees, for each node."""
    several: bool

    def leaves(self, root: np.int64, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Return the leaf of a tree that each row reaches."""
        nodes = np.full(len(rows), root)
        inside = np.flatnonzero(self.left[nodes] != LEAF)
        while len(inside):
            current = nodes[inside]
            goes_left = rows[inside, self.column[current]] <= self.threshold[current]
            nodes[inside] = np.where(goes_left, self.left[current], self.right[current])
            inside = inside[self.left[nodes[inside]] != LEAF]
        return nodes


def joined(trees: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the nodes of scikit-learn's trees (attribute `tree_`) as one list, without values."""
    counts = [tree.node_count for tree in trees]
    roots = np.cumsum([0, *counts])[:-1]
    nodes: dict[str, npt.NDArray[Any]] = {"roots": roots}
    names = {
        "left": "children_left",
        "right": "children_right",
        "column": "feature",
        "threshold": "threshold",
    }
    for name, attribute in names.items():
        arrays = [np.zeros(0, np.int64)]
        for tree, root in zip(trees, roots, strict=True):
            values = getattr(tree, attribute)
            if attribute.startswith("children"):
                values = np.where(values == LEAF, LEAF, values + root)
            arrays.append(values)
        nodes[name] = np.concatenate(arrays)
    return nodes


def trees_of(estimators: Iterable[Any]) -> list[Any]:
    """Return the arrays of fitted trees of scikit-learn."""
    return [estimator.tree_ for estimator in estimators]


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
class ExtraTreesModel(TreesModel):
    """The mean over trees of the shares of the classes in a leaf."""

    learner: ClassVar[str] = "extra trees"
    classes: list[int]
    """The classes that the outputs of the trees belong to."""
    count: int
    """The number of all classes or labels."""

    def logits(self, features: Matrix) -> Numbers:
        rows = dense(features)
        total = np.zeros((len(rows), len(self.classes)))
        for root in self.roots:
            total += self.values[self.leaves(root, rows)]
        shares = np.zeros((len(rows), self.count))
        shares[:, self.classes] = total / len(self.roots)
        if not self.several:
            return floored_log(shares)
        both = floored_log(np.stack([1 - shares.ravel(), shares.ravel()], axis=1).clip(0, 1))
        return (both[:, 1] - both[:, 0]).reshape(shares.shape)

    def scores(self, features: Matrix) -> Numbers:
        """Return the logits, which are normalised already."""
        return self.logits(features)


class ExtraTrees(SimpleLearner):
    """Extremely randomised trees. A soft target becomes one row for each class, weighted by its
    share.
    """

    name = "extra trees"
    fitted = ExtraTreesModel
    dense_only = True
    slowness = 4
    trees: ClassVar[int] = 200

    def settings(self, several: bool) -> Settings:
        return [{"smallest_leaf": leaf} for leaf in (1, 3)]

    def fewer_settings(self, several: bool) -> Settings:
        return [{"smallest_leaf": 3}]

    def fits(
        self, rows: TrainingRows, settings: Settings, seed: int, start: Fitted | None = None
    ) -> Iterator[Fitted]:
        fit = self._labels if rows.several else self._classes
        for setting in settings:
            options = {
                "n_estimators": self.trees,
                "min_samples_leaf": int(setting["smallest_leaf"]),
                "random_state": seed,
            }
            yield fit(rows, options)

    def _classes(self, rows: TrainingRows, options: Mapping[str, Any]) -> ExtraTreesModel:
        numbers, labels, shares = hardened(rows.targets, rows.weights)
        forest = ExtraTreesClassifier(**options)
        forest.fit(dense(rows.features)[numbers], labels, sample_weight=shares)
        trees = trees_of(forest.estimators_)
        values = np.concatenate([tree.value[:, 0, :] for tree in trees])
        return ExtraTreesModel(
            values=values / values.sum(axis=1, keepdims=True),
            several=False,
            classes=forest.classes_.tolist(),
            count=rows.targets.shape[1],
            **joined(trees),
        )

    def _labels(self, rows: TrainingRows, options: Mapping[str, Any]) -> ExtraTreesModel:
        """Regress on the labels; a missing one counts as the mean of the label, which tells the
        trees nothing.
        """
        targets = rows.targets
        used = rows.weights > 0
        means = np.nan_to_num(np.nanmean(np.where(used[:, None], targets, np.nan), axis=0), nan=0.5)
        filled = np.where(np.isnan(targets), means, targets)
        forest = ExtraTreesRegressor(max_features="sqrt", **options)
        forest.fit(dense(rows.features)[used], filled[used], sample_weight=rows.weights[used])
        trees = trees_of(forest.estimators_)
        count = targets.shape[1]
        return ExtraTreesModel(
            values=np.concatenate([tree.value[:, :, 0] for tree in trees]),
            several=True,
            classes=list(range(count)),
            count=count,
            **joined(trees),
        )


@dataclass(frozen=True)
class BoostingModel(TreesModel):
    """Logits of classes or labels: a start, plus `rate` times the sum of the trees that belong to
    each.
    """

    learner: ClassVar[str] = "boosting"
    logit: npt.NDArray[np.int64]
    """The class or label that each tree adds to."""
    start: Numbers
    rate: float

    def logits(self, features: Matrix) -> Numbers:
        rows = dense(features)
        logits = np.tile(self.start, (len(rows), 1))
        for root, logit in zip(self.roots, self.logit, strict=True):
            logits[:, logit] += self.rate * self.values[self.leaves(root, rows)]
        return logits


@dataclass(frozen=True)
class Stages:
    """The trees of a model of scikit-learn."""

    logits: list[int]
    """The classes or labels that the trees of a round add to, in their order."""
    trees: list[list[Any]]
    """The trees of each round."""


class Boosting(SimpleLearner):
    """Gradient boosting of small trees, each on half of the rows. Several labels have a model
    each.
    """

    name = "boosting"
    fitted = BoostingModel
    dense_only = True
    slowness = 4
    rate: ClassVar[float] = 0.1

    def settings(self, several: bool) -> Settings:
        return [{"rounds": rounds} for rounds in (30, 100)]

    def fewer_settings(self, several: bool) -> Settings:
        return [{"rounds": 60}]

    def fits(
        self, rows: TrainingRows, settings: Settings, seed: int, start: Fitted | None = None
    ) -> Iterator[Fitted]:
        most = int(max(map(itemgetter("rounds"), settings)))
        if rows.several:
            starts, parts = self._labels(rows, most, seed)
        else:
            features = dense(rows.features)
            starts, stages = self._classes(features, rows.targets, rows.weights, most, seed)
            parts = [stages]
        for setting in settings:
            trees = []
            logit_of_tree = []
            for stages in parts:
                for stage in stages.trees[: int(setting["rounds"])]:
                    trees += stage
                    logit_of_tree += stages.logits
            yield BoostingModel(
                values=np.concatenate([[], *(tree.value.ravel() for tree in trees)]),
                logit=np.array(logit_of_tree, dtype=np.int64),
                start=starts,
                rate=self.rate,
                several=rows.several,
                **joined(trees),
            )

    def _labels(self, rows: TrainingRows, rounds: int, seed: int) -> tuple[Numbers, list[Stages]]:
        """Return the start and the trees of each label; a model of a label reads the rows that
        have it.
        """
        features = dense(rows.features)
        starts = np.empty(rows.targets.shape[1])
        parts = []
        for label, targets in enumerate(rows.targets.T):
            used = np.flatnonzero(~np.isnan(targets) & (rows.weights > 0))
            both = np.stack([1 - targets[used], targets[used]], axis=1)
            no_and_yes, stages = self._classes(
                features[used], both, rows.weights[used], rounds, seed
            )
            starts[label] = no_and_yes[1] - no_and_yes[0]
            parts.append(Stages([label], stages.trees))
        return starts, parts

    def _classes(
        self,
        rows: npt.NDArray[np.float32],
        targets: Numbers,
        weights: Numbers,
        rounds: int,
        seed: int,
    ) -> tuple[Numbers, Stages]:
        """Return the start of each class, and the trees of one model."""
        numbers, labels, shares = hardened(targets, weights)
        starts = np.full(targets.shape[1], ABSENT)
        present = np.unique(labels)
        if len(present) < 2:
            starts[present] = 0
            return starts, Stages([], [])
        model = GradientBoostingClassifier(
            n_estimators=rounds,
            learning_rate=self.rate,
            subsample=0.5,
            max_features="sqrt",
            random_state=seed,
        )
        model.fit(rows[numbers], labels, sample_weight=shares)
        prior = np.log(model.init_.class_prior_)
        starts[present] = prior
        if len(present) == 2:
            starts[present] = [0.0, prior[1] - prior[0]]
            present = present[1:]
        return starts, Stages(present.tolist(), list(map(trees_of, model.estimators_)))
