"""Many sparse columns become a few hundred dense ones, so that dozens of fits on the folds take
seconds.

A penalised linear model is a mixture of its training rows. Here it may be a mixture of some rows
only, the landmarks: all primary rows and a sample of the auxiliary ones. Products of primary rows
stay as they are, so a model of the primary rows alone does not change. Labels play no part.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from attittud_lab.features.base import Matrix
from attittud_lab.learners import Numbers
from attittud_lab.learners.base import is_sparse, stack_rows
from attittud_lab.uses.problem import Problem

AUXILIARY = 600
"""How many auxiliary rows are landmarks, at most."""
MOST_PRIMARY = 600
"""With more primary rows than this, features stay as they are."""
_SMALLEST = 1e-6
"""Directions with a smaller share of the largest variance are rounding errors, as products are in
float32.
"""


def with_fewer_columns(problem: Problem, seed: int) -> Problem:
    """Return the problem with dense features, one column for each landmark at most.

    It stays as it is if its features are dense, if it has no sources or many primary rows, or if
    there are as many landmarks as columns. With the products of landmarks K = U diag(λ) Uᵀ, the new
    columns are (x · landmarks) U / √λ.
    """
    primary = problem.features
    sources = problem.sources
    if not is_sparse(primary) or primary.shape[0] > MOST_PRIMARY or not sources:
        return problem
    auxiliary = stack_rows([source.features for source in sources.values()])
    rows = np.random.default_rng(seed).permutation(auxiliary.shape[0])[:AUXILIARY]
    landmarks = stack_rows([primary, auxiliary[np.sort(rows)]])
    if landmarks.shape[0] >= landmarks.shape[1]:
        return problem
    values, vectors = eigh(products_of_rows(landmarks, landmarks))
    large = values > _SMALLEST * max(values[-1], 1e-300)
    rotation = vectors[:, large] / np.sqrt(values[large])
    reduced = {}
    for name, source in sources.items():
        columns = _coordinates(source.features, landmarks, rotation)
        reduced[name] = replace(source, features=columns)
    return replace(problem, features=_coordinates(primary, landmarks, rotation), sources=reduced)


def _coordinates(features: Matrix, landmarks: Matrix, rotation: Numbers) -> npt.NDArray[np.float32]:
    """Return rows x directions, in single precision."""
    return np.asarray(products_of_rows(features, landmarks) @ rotation, dtype=np.float32)


def products_of_rows(first: Matrix, second: Matrix) -> Numbers:
    """Return the products of all pairs of rows, as a dense matrix."""
    products = first @ second.T
    if is_sparse(products):
        products = products.toarray()
    return np.asarray(products, dtype=np.float64)
