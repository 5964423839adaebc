"""The learner of trees, scikit-learn's gradient boosting, for tables.

A model is kept as arrays. Our own few lines walk through them, and a test compares them with
scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import GradientBoostingClassifier
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

    @classmethod
    def of(cls, trees: Sequence[Any]) -> Forest:
        """Join the trees of scikit-learn (attribute `tree_`), which have one output each."""
        roots = np.cumsum([0, *(tree.node_count for tree in trees)])[:-1]
        joined: dict[str, npt.NDArray[Any]] = {}
        for name in ("children_left", "children_right", "feature", "threshold", "value"):
            arrays = [getattr(tree, name) for tree in trees]
            if name.startswith("children"):
                arrays = [shifted(array, root) for array, root in zip(arrays, roots, strict=True)]
            joined[name] = np.concatenate([np.zeros(0, np.int64), *map(np.ravel, arrays)])
        return cls(roots, *joined.values())

    def leaves(self, features: npt.NDArray[np.float32]) -> Iterator[Numbers]:
        """Yield for each tree the values of the leaves that the rows reach."""
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
            logits[:, column] += self.rate * values
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
        parts: list[tuple[list[int], list[list[Any]]]] = []
        """The logits that trees add to, and the trees of each round."""
        if several:
            starts = np.empty(count)
            for label in range(count):
                used = np.flatnonzero(~np.isnan(targets[:, label]) & (weights > 0))
                yes = targets[used, label]
                both = np.stack([1 - yes, yes], axis=1)
                no_and_yes, _, stages = self._classes(rows[used], both, weights[used], most, seed)
                starts[label] = no_and_yes[1] - no_and_yes[0]
                parts.append(([label], stages))
        else:
            starts, logits, stages = self._classes(rows, targets, weights, most, seed)
            parts.append((logits, stages))
        for setting in settings:
            trees = []
            logit_of_tree = []
            for logits, stages in parts:
                for stage in stages[: int(setting["rounds"])]:
                    trees += stage
                    logit_of_tree += logits
            numbers = np.array(logit_of_tree, dtype=np.int64)
            yield BoostingModel(Forest.of(trees), numbers, starts, self.rate, several)

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
