"""Stratified, seeded splits by count or fraction."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attittud_lab.config.options import Count
from attittud_lab.errors import InputError

Rows = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int64]
Groups = npt.NDArray[np.int64]
"""A number for each row; rows with the same one belong together."""


def amount(count: Count, available: int, what: str, total: int | None = None) -> int:
    """A count, or a fraction of `total` (all that is available where not given), as a number; null is all available."""
    if count is None:
        return available
    if isinstance(count, float):
        if not 0 < count < 1:
            raise InputError(
                f"{what}: a fraction lies between 0 and 1, got {count}; a whole number is a count, null takes all"
            )
        count = max(1, round(count * (available if total is None else total)))
    if count < 0:
        raise InputError(f"{what}: must not be negative, got {count}")
    if count > available:
        raise InputError(
            f"{what}: {int(count)} examples are wanted, but only {available} are there; ask for fewer, or null for all"
        )
    return int(count)


def stratified(
    rows: Rows, labels: Labels | None, size: int, seed: int, groups: Groups | None = None
) -> tuple[Rows, Rows]:
    """`size` of the rows, each class in proportion (largest remainder), and the rest; both in random order.

    `labels` and `groups` belong to the rows. Groups (the images of a patient, say) stay whole: no more than `size` rows
    are taken then, and as many as whole groups allow.
    """
    generator = np.random.default_rng(seed)
    if groups is not None:
        chosen = _whole_groups(labels, groups, size, generator)
        return generator.permutation(rows[chosen]), generator.permutation(rows[~chosen])
    order = _order(strata(labels, len(rows)), generator)
    taken, left = rows[order[:size]], rows[order[size:]]
    return generator.permutation(taken), generator.permutation(left)


def strata(labels: Labels | None, count: int) -> npt.NDArray[np.int64]:
    """The stratum of each row: its class, or of several labels at once its rarest one.

    So the rarest labels, of which a split can easily get none, come out in proportion, the more common ones nearly. (Strata
    by combination of labels would put every combination that occurs once into the same part.)
    """
    if labels is None:
        return np.zeros(count, dtype=np.int64)
    if labels.ndim == 1:
        return labels
    ranks = labels.sum(0).argsort(kind="stable").argsort(kind="stable") + 1  # 1 is the rarest
    rarest: npt.NDArray[np.int64] = np.where(labels == 1, ranks, len(ranks) + 1).min(1, initial=len(ranks) + 1)
    return rarest


def _order(groups: npt.NDArray[np.int64], generator: np.random.Generator) -> Rows:
    """All rows in an order whose every beginning has all strata in proportion, up to one row."""
    # A key in [0, 1) for each row, evenly spread within its stratum.
    keys = np.empty(len(groups))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        keys[members] = (generator.permutation(len(members)) + 0.5) / len(members)
    return np.lexsort((generator.permutation(len(groups)), keys))


def _whole_groups(
    labels: Labels | None, groups: Groups, size: int, generator: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Which rows to take: groups in the order above, each if it still fits. A group counts for its rarest row."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    number = number.reshape(-1)
    of_rows = strata(labels, len(groups))
    counts = np.bincount(of_rows)
    rarest = of_rows[first]
    for row, group in enumerate(number):
        if counts[of_rows[row]] < counts[rarest[group]]:
            rarest[group] = of_rows[row]
    sizes, left = np.bincount(number), size
    chosen = np.zeros(len(first), dtype=bool)
    for group in _order(rarest, generator):
        if sizes[group] <= left:
            chosen[group] = True
            left -= int(sizes[group])
    return chosen[number]
