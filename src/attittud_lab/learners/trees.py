"""The learner of trees, scikit-learn's gradient boosting, for tables.

A model is kept as arrays. Our own few lines walk through them, and a test compares them with
scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import GradientBoostingClassifier

from attittud_lab.features.base import Matrix
from attittud_lab.learners.base import (
    ABSENT,
    Fitted,
    Numbers,
    Setting,
    SimpleLearner,
    TrainingRows,
    dense,
)

LEAF = -1
"""The child of a leaf, as scikit-learn writes it."""


@dataclass(frozen=True)
class BoostingModel(Fitted):
    """Logits of classes or labels: a start, plus `rate` times the sum of the trees that belong to
    each.

    All trees are in one list of nodes; a child is the number of its node in this list.
    """

    learner: ClassVar[str] = "boosting"
    roots: npt.NDArray[np.int64]
    """The first node of each tree."""
    logit: npt.NDArray[np.int64]
    """The class or label that each tree adds to."""
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    threshold: Numbers
    values: Numbers
    start: Numbers
    rate: float
    several: bool

    def logits(self, features: Matrix) -> Numbers:
        rows = dense(features)
        logits = np.tile(self.start, (len(rows), 1))
        for root, logit in zip(self.roots, self.logit, strict=True):
            logits[:, logit] += self.rate * self.values[self._leaves(root, rows)]
        return logits

    def _leaves(self, root: np.int64, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
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
    """Return the nodes of scikit-learn's trees (attribute `tree_`) as one list."""
    roots = np.cumsum([0, *(tree.node_count for tree in trees)])[:-1]
    nodes: dict[str, npt.NDArray[Any]] = {"roots": roots}
    names = {
        "left": "children_left",
        "right": "children_right",
        "column": "feature",
        "threshold": "threshold",
        "values": "value",
    }
    for name, attribute in names.items():
        arrays = [np.ravel(getattr(tree, attribute)) for tree in trees]
        if attribute.startswith("children"):
            arrays = [
                np.where(children == LEAF, LEAF, children + root)
                for children, root in zip(arrays, roots, strict=True)
            ]
        nodes[name] = np.concatenate([np.zeros(0, np.int64), *arrays])
    return nodes


def hardened(
    targets: Numbers, weights: Numbers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Numbers]:
    """Return rows, classes and weights of soft targets: one entry for each class of a row that has
    a weight.
    """
    shares = targets * weights[:, None]
    rows, classes = np.nonzero(shares > 0)
    return rows, classes, shares[rows, classes]


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
        rows: TrainingRows,
        settings: Sequence[Setting],
        seed: int,
        start: Fitted | None = None,
    ) -> Iterator[Fitted]:
        features = dense(rows.features)
        targets = rows.targets
        weights = rows.weights
        most = int(max(setting["rounds"] for setting in settings))
        count = targets.shape[1]
        parts: list[tuple[list[int], list[list[Any]]]] = []
        """The logits that trees add to, and the trees of each round."""
        if rows.several:
            starts = np.empty(count)
            for label in range(count):
                used = np.flatnonzero(~np.isnan(targets[:, label]) & (weights > 0))
                yes = targets[used, label]
                both = np.stack([1 - yes, yes], axis=1)
                no_and_yes, _, stages = self._classes(
                    features[used], both, weights[used], most, seed
                )
                starts[label] = no_and_yes[1] - no_and_yes[0]
                parts.append(([label], stages))
        else:
            starts, logits, stages = self._classes(features, targets, weights, most, seed)
            parts.append((logits, stages))
        for setting in settings:
            trees = []
            logit_of_tree = []
            for logits, stages in parts:
                for stage in stages[: int(setting["rounds"])]:
                    trees += stage
                    logit_of_tree += logits
            logit = np.array(logit_of_tree, dtype=np.int64)
            yield BoostingModel(
                logit=logit, start=starts, rate=self.rate, several=rows.several, **joined(trees)
            )

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
        stages = [[tree.tree_ for tree in stage] for stage in model.estimators_]
        return starts, present.tolist(), stages
