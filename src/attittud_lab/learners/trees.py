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
    """The child of each node for rows whose number in `column` is at most the `threshold`."""
    right: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    threshold: Numbers
    values: Numbers
    """A number, or one for each output of the trees, for each node."""
    several: bool

    def leaves(self, root: np.int64, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Return the node in which each row (n x width) ends when it walks down a tree from its
        root.
        """
        nodes = np.full(len(rows), root)
        inside = np.flatnonzero(self.left[nodes] != LEAF)  # rows that have not reached a leaf
        while len(inside):
            current = nodes[inside]
            goes_left = rows[inside, self.column[current]] <= self.threshold[current]
            nodes[inside] = np.where(goes_left, self.left[current], self.right[current])
            inside = inside[self.left[nodes[inside]] != LEAF]
        return nodes


def joined(trees: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the nodes of scikit-learn's trees (attribute `tree_`) as one list: the arguments of
    `TreesModel` but `values` and `several`.
    """
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
        arrays = [np.zeros(0, np.int64)]  # a model may have no tree
        for tree, root in zip(trees, roots, strict=True):
            values = getattr(tree, attribute)
            if attribute.startswith("children"):  # numbers of nodes, counted in their own tree
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
    """Turn soft targets (rows x classes) into hard ones, since scikit-learn reads no others.

    Returns the row number, the class and the weight of each entry above zero: a row with the
    targets 0.7 and 0.3 becomes two entries.
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
        """Return the logarithms of the shares of classes, or for several labels their logits."""
        rows = dense(features)
        total = np.zeros((len(rows), len(self.classes)))
        for root in self.roots:
            total += self.values[self.leaves(root, rows)]
        shares = np.zeros((len(rows), self.count))
        shares[:, self.classes] = total / len(self.roots)
        if not self.several:
            return floored_log(shares)
        # The logit of a label is log p(yes) − log p(no).
        no_and_yes = np.stack([1 - shares.ravel(), shares.ravel()], axis=1).clip(0, 1)
        logarithms = floored_log(no_and_yes)
        return (logarithms[:, 1] - logarithms[:, 0]).reshape(shares.shape)

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
        """Yield a forest for each setting: a classifier, or with several labels a regression."""
        fit = self._labels if rows.several else self._classes
        for setting in settings:
            options = {
                "n_estimators": self.trees,
                "min_samples_leaf": int(setting["smallest_leaf"]),
                "random_state": seed,
            }
            yield fit(rows, options)

    def _classes(self, rows: TrainingRows, options: Mapping[str, Any]) -> ExtraTreesModel:
        """Fit a classifier; the values of a node are the shares of the classes in it."""
        numbers, labels, shares = hardened(rows.targets, rows.weights)
        forest = ExtraTreesClassifier(**options)
        forest.fit(dense(rows.features)[numbers], labels, sample_weight=shares)
        trees = trees_of(forest.estimators_)
        values = np.concatenate([tree.value[:, 0, :] for tree in trees])  # nodes x classes
        return ExtraTreesModel(
            values=values / values.sum(axis=1, keepdims=True),
            several=False,
            classes=forest.classes_.tolist(),
            count=rows.targets.shape[1],
            **joined(trees),
        )

    def _labels(self, rows: TrainingRows, options: Mapping[str, Any]) -> ExtraTreesModel:
        """Fit a regression on the labels; a missing label counts as its mean, which tells the trees
        nothing. A label that is always missing has the mean 0.5.
        """
        targets = rows.targets
        weighted = rows.weights > 0
        means = np.nanmean(np.where(weighted[:, None], targets, np.nan), axis=0)
        filled = np.where(np.isnan(targets), np.nan_to_num(means, nan=0.5), targets)
        forest = ExtraTreesRegressor(max_features="sqrt", **options)
        features = dense(rows.features)[weighted]
        forest.fit(features, filled[weighted], sample_weight=rows.weights[weighted])
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
        """Yield a model for each setting, from one fit: a model of fewer rounds has the first trees
        of a model of more rounds.
        """
        most = int(max(map(itemgetter("rounds"), settings)))
        if rows.several:
            starts, models = self._labels(rows, most, seed)
        else:
            features = dense(rows.features)
            starts, model = self._classes(features, rows.targets, rows.weights, most, seed)
            models = [model]
        for setting in settings:
            trees = []
            logit_of_tree = []
            for model in models:
                for trees_of_round in model.trees[: int(setting["rounds"])]:
                    trees += trees_of_round
                    logit_of_tree += model.logits
            yield BoostingModel(
                values=np.concatenate([[], *(tree.value.ravel() for tree in trees)]),
                logit=np.array(logit_of_tree, dtype=np.int64),
                start=starts,
                rate=self.rate,
                several=rows.several,
                **joined(trees),
            )

    def _labels(self, rows: TrainingRows, rounds: int, seed: int) -> tuple[Numbers, list[Stages]]:
        """Return the start of each label, and the trees of its model, which has the classes no and
        yes and reads the rows that have the label.
        """
        features = dense(rows.features)
        starts = np.empty(rows.targets.shape[1])
        models = []
        for label, targets in enumerate(rows.targets.T):
            labelled = np.flatnonzero(~np.isnan(targets) & (rows.weights > 0))
            no_and_yes = np.stack([1 - targets[labelled], targets[labelled]], axis=1)
            weights = rows.weights[labelled]
            model_starts, model = self._classes(
                features[labelled], no_and_yes, weights, rounds, seed
            )
            starts[label] = model_starts[1] - model_starts[0]
            models.append(Stages([label], model.trees))
        return starts, models

    def _classes(
        self,
        rows: npt.NDArray[np.float32],
        targets: Numbers,
        weights: Numbers,
        rounds: int,
        seed: int,
    ) -> tuple[Numbers, Stages]:
        """Fit one model to rows x width, targets rows x classes; return the start of each class,
        and the trees.

        A class without rows starts at `ABSENT`. A single class needs no tree.
        """
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
            # scikit-learn has one tree in a round then, for the logit of the second class.
            starts[present] = [0.0, prior[1] - prior[0]]
            present = present[1:]
        return starts, Stages(present.tolist(), list(map(trees_of, model.estimators_)))
