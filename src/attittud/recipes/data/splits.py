"""Stratified, seeded splits by count or fraction."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attittud.recipes.config import Count
from attittud.recipes.errors import InputError

Rows = npt.NDArray[np.int64]


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


def stratified(rows: Rows, labels: npt.NDArray[np.int64] | None, size: int, seed: int) -> tuple[Rows, Rows]:
    """`size` of the rows, each class in proportion (largest remainder), and the rest; both in random order.

    `labels` belong to the rows. Rows with several labels at once are stratified by their combination of labels.
    """
    generator = np.random.default_rng(seed)
    if labels is None:
        groups = np.zeros(len(rows), dtype=np.int64)
    elif labels.ndim == 2:
        groups = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    else:
        groups = labels
    # A key in [0, 1) for each row, evenly spread within its class: the smallest `size` keys have all classes in
    # proportion, up to one example.
    keys = np.empty(len(rows))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        keys[members] = (generator.permutation(len(members)) + 0.5) / len(members)
    order = np.lexsort((generator.permutation(len(rows)), keys))
    taken, left = rows[order[:size]], rows[order[size:]]
    return generator.permutation(taken), generator.permutation(left)
