"""Folds of the labels: every class in proportion, groups whole, and rare classes always among the
training examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
import torch

from attittud_lab.config.schema import PortfolioConfig
from attittud_lab.data.prepare import Prepared
from attittud_lab.data.source import Labels, Rows
from attittud_lab.data.splits import strata
from attittud_lab.errors import InputError

NEVER = -1
"""The fold of examples that are never held out."""
HELD_OUT = 5
"""With a single split, one of this many parts is held out, or a smaller part:"""
MOST_HELD_OUT = 4000
"""More held-out examples would only make looks slower."""


@dataclass(frozen=True)
class Folds:
    """The fold in which each example is held out."""

    fold_of: Rows
    """The number of the fold of each example, or `NEVER`."""
    count: int
    """How many folds there are; 1 if a single part is held out and the others always train."""
    not_validated: list[str]
    """Classes that are too rare to be held out."""

    def held_out(self, fold: int) -> Rows:
        """The examples of a fold, by their numbers."""
        return np.flatnonzero(self.fold_of == fold)

    @property
    def validated(self) -> Rows:
        """All examples that are held out once, fold by fold."""
        return np.concatenate([self.held_out(fold) for fold in range(self.count)])

    @property
    def smallest(self) -> int:
        """Training examples of the fold that has the fewest."""
        largest = max(len(self.held_out(fold)) for fold in range(self.count))
        return len(self.fold_of) - largest


def make_folds(data: Prepared, config: PortfolioConfig, seed: int) -> Folds:
    """Divide pooled data into folds; fewer than configured if most labels would otherwise be too
    rare to be held out. Refuses data of which nothing can be held out.

    With very many labels there is a single split: one of many folds is held out, and the others
    always train.
    """
    targets = data.primary.examples.targets
    assert targets is not None
    labels = targets.cpu().numpy()
    if data.groups is None:
        units = np.arange(len(labels))
    else:
        units = np.array(data.groups)
    # `units` are held out as a whole: examples, or groups of them.
    one_split = len(labels) > config.one_split_above
    counts: Sequence[int] = range(config.folds, 1, -1)
    if one_split:
        counts = [max(HELD_OUT, len(labels) // MOST_HELD_OUT)]
    # The first number of folds that is possible; else the last one, with what is rare then.
    for count in counts:
        rare = rare_examples(labels, data.groups, count)
        most_are_rare = 2 * rare.sum() > len(labels)
        if not most_are_rare and len(np.unique(units[~rare])) >= count:
            break
    if one_split and most_are_rare:
        # Many small classes: two examples are enough to hold one of them out.
        rare = rare_examples(labels, data.groups, 2)
    if rare.all():
        problem = f"data.primary: there are {len(labels)} labels, and no class has two examples"
        raise InputError(f"{problem} (in two groups), so nothing can be held out; give more labels")
    fold_of = assign(labels, data.groups, rare, count, seed)
    if one_split:
        fold_of = np.where(fold_of == 0, 0, NEVER)
    held_out = labels[fold_of != NEVER]
    if labels.ndim == 1:
        present = np.isin(np.arange(len(data.primary.classes)), held_out)
    else:
        present = (held_out == 1).any(axis=0)
    missing = list(compress(data.primary.classes, ~present))
    # There are fewer than `count` folds where all but one group are rare.
    return Folds(fold_of, int(fold_of.max()) + 1, missing)


def rare_examples(labels: Labels, groups: Sequence[str] | None, count: int) -> np.ndarray:
    """Find the examples of classes (or labels) with fewer than `count` examples, or with fewer
    groups than that.

    Groups stay whole: if one example of a group is rare, all are.
    """
    if groups is None:
        units = np.arange(len(labels))
    else:
        units = np.unique(groups, return_inverse=True)[1]
    rare = np.zeros(len(labels), dtype=bool)
    for members in _columns(labels).T:
        if len(np.unique(units[members])) < count:
            rare |= members
    return np.isin(units, units[rare])


def assign(
    labels: Labels, groups: Sequence[str] | None, rare: np.ndarray, count: int, seed: int
) -> Rows:
    """Deal out the examples; `NEVER` for rare ones, and for one group of a class that would
    otherwise lie in one fold.

    Without groups, folds differ by at most one example, in each class and in total. With several
    labels at once, this holds for the examples that share their rarest label.

    With groups, the next group g goes to the fold f that stays nearest to equal parts: to the one
    with the lowest Σ_c ((n_fc + n_gc)² - n_fc²) / n_c, plus the same for the sizes, with the counts
    n_fc and n_gc of class c in the fold and in the group.
    """
    generator = np.random.default_rng(seed)
    fold_of = np.full(len(labels), NEVER, dtype=np.int64)
    layers = strata(labels, len(labels))  # the class of each example, or its rarest label
    if groups is None:
        shuffled = generator.permutation(np.flatnonzero(~rare))
        # One class after the other, dealt out like cards without a break between two classes.
        by_class = shuffled[np.argsort(layers[shuffled], kind="stable")]
        fold_of[by_class] = np.arange(len(by_class)) % count
        return fold_of
    names, group_of = np.unique(groups, return_inverse=True)
    class_of = np.unique(layers, return_inverse=True)[1]
    group_counts = np.zeros((len(names), class_of.max() + 1))  # n_gc, groups x classes
    np.add.at(group_counts, (group_of[~rare], class_of[~rare]), 1)
    total = np.maximum(group_counts.sum(0), 1)  # n_c
    fold_counts = np.zeros((count, group_counts.shape[1]))  # n_fc so far, folds x classes
    fold_of_group = np.full(len(names), NEVER, dtype=np.int64)
    order = generator.permutation(len(names))
    large_first = order[np.argsort(-group_counts[order].sum(1), kind="stable")]
    for group in large_first:
        if group_counts[group].any():
            after = fold_counts + group_counts[group]
            of_classes = ((after**2 - fold_counts**2) / total).sum(1)
            of_sizes = (after.sum(1) ** 2 - fold_counts.sum(1) ** 2) / total.sum()
            fold_of_group[group] = int((of_classes + of_sizes).argmin())
            fold_counts[fold_of_group[group]] += group_counts[group]
    fold_of[:] = fold_of_group[group_of]
    for members in _columns(labels).T:
        folds = np.unique(fold_of[members])
        if len(folds) == 1 and folds[0] != NEVER:
            # All of a class would be held out at once. The smallest of its groups trains in every
            # fold.
            of_class = np.unique(group_of[members])
            smallest = min(of_class, key=lambda group: np.count_nonzero(group_of == group))
            fold_of[group_of == smallest] = NEVER
    return fold_of


def _columns(labels: Labels) -> np.ndarray:
    """Return which examples have each class, or each of several labels: n x classes."""
    if labels.ndim == 1:
        return np.asarray(labels[:, None] == np.unique(labels))
    return np.asarray(labels == 1)


def fold_data(data: Prepared, folds: Folds, fold: int | None) -> Prepared:
    """Return the pooled data with one fold as validation and the other examples as primary ones;
    with None all labels train and none is held out.
    """
    examples = data.primary.examples
    if fold is None:
        return replace(data, validation=examples.rows(torch.arange(0)))
    in_fold = folds.fold_of == fold
    train = examples.rows(torch.from_numpy(np.flatnonzero(~in_fold)))
    validation = examples.rows(torch.from_numpy(np.flatnonzero(in_fold)))
    return replace(data, primary=replace(data.primary, examples=train), validation=validation)
