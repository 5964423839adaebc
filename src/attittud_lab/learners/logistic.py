"""Logistic regression with soft targets and row weights: the solver that the linear and the kernel
learner share.

scikit-learn's logistic regression takes hard labels only. For hard labels, ours has the same
solution with C = 1 / penalty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.optimize import minimize

from attittud_lab.features.base import Matrix
from attittud_lab.learners.base import (
    ABSENT,
    Numbers,
    TrainingRows,
    is_sparse,
    log_softmax,
    sigmoid,
)

MOST_ROTATED = 700
"""Up to this many rows are rotated into as many columns. For more, the rotation takes longer than
it saves.
"""
TOLERANCE = 3e-4
"""The largest entry that the gradient of the mean loss may have at the end."""
ROTATED_TOLERANCE = 1e-7
"""The same for rotated rows, whose steps cost next to nothing."""
MOST_STEPS = 300
_SMALLEST = 1e-10
"""Directions with a smaller share of the largest variance are rounding errors."""


class CentredColumns:
    """Products with features that are centred and divided by one number, so that rows have length 1
    on average.

    Centring changes no solution, since the intercept is free, but it makes the solver faster. A
    common length makes a penalty mean the same for all kinds of features. Sparse features stay
    sparse.

    A few rows with many columns are rotated into few columns. For the centred rows X this is
    X = Z Vᵀ with orthonormal columns of V, so the penalty and all products of rows stay the same.
    V is a mixture of the rows: V = Xᵀ M.
    """

    def __init__(self, features: Matrix) -> None:
        rows, self.width = features.shape  # a rotation makes `width` the number of columns of Z
        self.features = features
        self.mean: Numbers = np.asarray(features.mean(axis=0), dtype=np.float64).reshape(self.width)
        self.scale = mean_length(features)
        self.rotated: Numbers | None = None
        """Z / scale, rows x width; None if the columns are not rotated."""
        if rows < self.width and rows <= MOST_ROTATED:
            self.rotated, self.mixture = self._rotation()
            self.width = self.rotated.shape[1]

    def times(self, parameters: Numbers) -> Numbers:
        """Multiply the columns (rows x width) by parameters (width x logits).

        Features that are not rotated are never centred themselves: with P = parameters,
        ((x − mean) / scale) P = x (P / scale) − mean (P / scale).
        """
        if self.rotated is not None:
            product: Numbers = self.rotated @ parameters
            return product
        scaled = parameters / self.scale
        raw = self.features @ scaled.astype(self.features.dtype)
        return np.asarray(raw, dtype=np.float64) - self.mean @ scaled

    def transposed_times(self, slopes: Numbers) -> Numbers:
        """Multiply the transposed columns (width x rows) by slopes (rows x logits)."""
        if self.rotated is not None:
            product: Numbers = self.rotated.T @ slopes
            return product
        raw = self.features.T @ slopes.astype(self.features.dtype)
        centred = np.asarray(raw, dtype=np.float64) - np.outer(self.mean, slopes.sum(axis=0))
        return centred / self.scale

    def restored(self, parameters: Numbers, intercept: Numbers) -> tuple[Numbers, Numbers]:
        """Return the weights and the intercept that give the same logits for the features as they
        came: neither centred, nor divided, nor rotated.
        """
        weights = parameters / self.scale
        if self.rotated is not None:
            # V w = Xᵀ (M w), where X has the features minus their mean.
            mixture = self.mixture @ weights
            raw = np.asarray(self.features.T @ mixture, dtype=np.float64)
            weights = raw - np.outer(self.mean, mixture.sum(axis=0))
        return weights, intercept - self.mean @ weights

    def _rotation(self) -> tuple[Numbers, Numbers]:
        """Return Z / scale and M, both rows x directions.

        With the products of the centred rows X Xᵀ = U diag(λ) Uᵀ, they are Z = U √λ and M = U / √λ.
        """
        if is_sparse(self.features):
            # (x − mean) · (y − mean), multiplied out, since centred rows would not be sparse.
            rows = self.features.astype(np.float64)
            products = np.asarray((rows @ rows.T).todense())
            with_mean = np.asarray(rows @ self.mean)
            products = products - with_mean[:, None] - with_mean[None, :] + self.mean @ self.mean
        else:
            centred = self.features.astype(np.float64) - self.mean
            products = centred @ centred.T
        values, vectors = eigh(products)
        large = values > _SMALLEST * max(values[-1], 1e-300)
        roots = np.sqrt(values[large])
        return vectors[:, large] * (roots / self.scale), vectors[:, large] / roots


def mean_length(features: Matrix) -> float:
    """Return the root mean square of the lengths of centred rows; 1 if all rows are equal.

    It is the root of mean ‖x‖² − ‖mean x‖².
    """
    if is_sparse(features):
        squares = float(features.multiply(features).sum()) / features.shape[0]
    else:
        squares = float(np.square(features, dtype=np.float64).sum()) / len(features)
    mean = np.asarray(features.mean(axis=0), dtype=np.float64).ravel()
    variance = squares - float(mean @ mean)
    if not variance > 1e-10 * squares:
        return 1.0
    return float(np.sqrt(variance))


class LogisticRegressions:
    """Logistic regressions on the same rows that differ only in their penalty.

    With z = x W + b, the loss of a row with target t is −Σ_c t_c log softmax(z)_c. With row weights
    w,

        objective = Σ_i w_i loss_i + penalty / 2 · ||W||²

    Two classes have one logit, as in scikit-learn: that of the second class, since softmax depends
    on the difference alone. Several labels at once have one logit each. The intercept b has no
    penalty.
    """

    def __init__(self, rows: TrainingRows) -> None:
        """Prepare what all penalties share: the columns, and the targets and weights of logits."""
        targets = rows.targets
        several = rows.several
        self.several = several
        self.classes = targets.shape[1]
        self.columns = CentredColumns(rows.features)
        self.total = max(float(rows.weights.sum()), 1e-300)
        self.weights = (rows.weights / self.total)[:, None]
        """The weight of each row as a share of `total`, rows x 1."""
        if several:
            has_target = ~np.isnan(targets)
            positive = np.where(has_target, targets, 0.0)
            mass = has_target.astype(np.float64)
        else:
            positive = targets
            mass = targets.sum(axis=1, keepdims=True)
        self.positive_share: Numbers = (self.weights * positive).sum(axis=0)
        """The part of all weight that each class or label has."""
        self.labelled_share: Numbers = (self.weights * mass).sum(axis=0)
        """The part of all weight whose rows have targets: one number, or one for each label."""
        has_logit = self.positive_share > 0
        if several:
            # A label that every row has, like one that no row has, is constant.
            has_logit &= self.positive_share < self.labelled_share
        self.modelled: npt.NDArray[np.int64] = np.flatnonzero(has_logit)
        """The classes or labels that are fitted; the training rows say nothing about the others."""
        self.binary = several or len(self.modelled) == 2
        """Whether each logit is one of yes and no, and not one of many classes."""
        self.mass = mass
        """The sum of the targets of a row, rows x 1; of labels 1, or 0 if missing, rows x logits."""
        if several:
            self.mass = mass[:, self.modelled]
        self.positive = positive[:, self.modelled]
        """The target of each logit, rows x logits."""
        if not several and self.binary:
            self.positive = self.positive[:, 1:]  # the first of two classes has the logit 0

    def solve(
        self, penalties: Sequence[float], start: tuple[Numbers, Numbers] | None = None
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield W (width x classes) and b (classes) for each penalty, in the order of `penalties`.

        The strongest penalty comes first in the search, and each solution is where the next search
        starts. `start` has W and b of a solution that is probably near the first one.
        """
        strongest_first = np.argsort(np.negative(penalties), kind="stable").tolist()
        parameters = np.zeros((self.columns.width + 1, self.positive.shape[1]))
        if start is not None and self.columns.rotated is None:
            parameters = self._as_parameters(*start)
        solutions = {}
        for number in strongest_first:
            parameters = self._minimum(penalties[number], parameters)
            weights, intercept = self.columns.restored(parameters[:-1], parameters[-1])
            solutions[number] = self._for_all_classes(weights, intercept)
        for number in range(len(penalties)):
            yield solutions[number]

    def _as_parameters(self, weights: Numbers, intercept: Numbers) -> Numbers:
        """Return W and b of a solution as `_minimum` has them, for columns that are not rotated.

        The columns are centred and divided by the scale, so
        x W + b = ((x − mean) / scale) (scale · W) + (b + mean W).
        """
        centred_intercept = intercept + self.columns.mean @ weights
        of_classes = np.concatenate([weights * self.columns.scale, centred_intercept[None]])
        if self.binary and not self.several:
            # The one logit is that of the second class minus that of the first.
            first, second = self.modelled
            return np.asarray(of_classes[:, [second]] - of_classes[:, [first]])
        return np.asarray(of_classes[:, self.modelled])

    def _minimum(self, penalty: float, start: Numbers) -> Numbers:
        """Search from `start` for the best parameters, (width + 1) x logits; the last row is the
        intercept.

        Without a logit, or with a single class, there is nothing to search for.
        """
        single_class = not self.several and len(self.modelled) == 1
        if start.size == 0 or single_class:
            return start
        strength = penalty / self.total  # the losses are divided by the total too

        def objective(flat: Numbers) -> tuple[float, Numbers]:
            """Return the objective per unit of weight, and its gradient."""
            parameters = flat.reshape(start.shape)
            loss, slopes = self._loss(self.columns.times(parameters[:-1]) + parameters[-1])
            gradient = np.empty_like(parameters)
            gradient[:-1] = self.columns.transposed_times(slopes) + strength * parameters[:-1]
            gradient[-1] = slopes.sum(axis=0)
            value = loss + 0.5 * strength * float(np.square(parameters[:-1]).sum())
            return value, gradient.ravel()

        tolerance = TOLERANCE
        if self.columns.rotated is not None:
            tolerance = ROTATED_TOLERANCE
        options = {"maxiter": MOST_STEPS, "maxcor": 20, "gtol": tolerance, "ftol": 1e-12}
        end = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
        return np.asarray(end.x, dtype=np.float64).reshape(start.shape)

    def _loss(self, logits: Numbers) -> tuple[float, Numbers]:
        """Return the mean loss at logits (rows x logits), and its gradient there.

        A logit z of yes and no costs mass · log(1 + eᶻ) − positive · z, whose slope is
        mass · sigmoid(z) − positive. Logits of many classes cost −Σ_c positive_c log softmax(z)_c,
        with the slopes mass · softmax(z) − positive.
        """
        if self.binary:
            losses = self.mass * np.logaddexp(0, logits) - self.positive * logits
            slopes = self.mass * sigmoid(logits) - self.positive
        else:
            log_probabilities = log_softmax(logits)
            losses = -self.positive * log_probabilities
            slopes = self.mass * np.exp(log_probabilities) - self.positive
        return float((self.weights * losses).sum()), self.weights * slopes

    def _for_all_classes(self, weights: Numbers, intercept: Numbers) -> tuple[Numbers, Numbers]:
        """Return W and b of all classes or labels, from weights and intercept of the logits.

        The others have no weights and a constant logit. For a class without rows it is `ABSENT`.
        For a label that all rows or no row has, it is the logarithm of its odds, after half a row
        is added to yes and to no. The first of two classes, and a single class, have the logit 0.
        """
        all_weights = np.zeros((len(weights), self.classes))
        if self.several:
            half_a_row = 0.5 / self.total
            negative_share = self.labelled_share - self.positive_share
            all_intercepts = np.log(self.positive_share + half_a_row)
            all_intercepts -= np.log(negative_share + half_a_row)
        else:
            all_intercepts = np.full(self.classes, ABSENT)
        class_of_logit = self.modelled
        if self.binary and not self.several:
            all_intercepts[self.modelled[0]] = 0.0
            class_of_logit = self.modelled[1:]
        elif len(self.modelled) == 1 and not self.several:
            all_intercepts[self.modelled] = 0.0
            class_of_logit = self.modelled[:0]
            weights = weights[:, :0]
            intercept = intercept[:0]
        all_weights[:, class_of_logit] = weights
        all_intercepts[class_of_logit] = intercept
        return all_weights, all_intercepts
