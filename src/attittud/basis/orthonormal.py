"""Gram-Schmidt of the rows of a k x D matrix, in row order, in place.

By Cholesky of the Gram matrix, twice: two reads and a write of the matrix per pass instead of a D x k QR. The Gram
matrix and the k x k factor are float64. No operation waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attittud.linalg import gram, transform_


@dataclass(frozen=True)
class Rows:
    """What orthonormalisation tells about the rows it was given."""

    factor: Tensor
    """k x k float64: original = factor @ orthonormal (columns of zeroed rows are zero)."""
    finite: Tensor
    """Whether the original held no NaN and no Inf (a boolean on the device)."""


def tolerance(dtype: torch.dtype) -> float:
    """Relative size below which a direction is rounding noise.

    Per-example gradients carry some hundred roundings of their own; and the Gram matrix squares, which in float64
    leaves eight digits.
    """
    return max(100 * float(torch.finfo(dtype).eps), 1e-7)


def orthonormalise_(rows: Tensor, sum_columns: Callable[[Tensor], Tensor] = lambda x: x) -> Rows:
    """Gram-Schmidt of the rows in order; rows without a direction of their own become zero, not normalised noise.

    Where workers hold different columns, `sum_columns` adds up the k x k Gram matrices of their parts.
    """
    first = sum_columns(gram(rows))
    finite = torch.isfinite(first).all()
    # Zeros pass through what follows without a special case; the caller looks at `finite`.
    factor, inverse = _cholesky(torch.where(finite, first, 0.0), tolerance(rows.dtype))
    transform_(rows, inverse)
    again, inverse = _cholesky(torch.where(finite, sum_columns(gram(rows)), 0.0), 0.5)
    transform_(rows, inverse)
    return Rows(factor @ again, finite)


def _cholesky(matrix: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Lower factor L and its inverse; directions weaker than `tolerance` times the longest row are zeroed in both.

    `torch.linalg.cholesky_ex` stops at the first vanishing pivot; here k is small and the later rows still count.
    """
    k = matrix.shape[0]
    rest = matrix.clone()
    threshold = tolerance**2 * matrix.diagonal().amax()
    factor = torch.zeros_like(matrix)
    for j in range(k):
        pivot = rest[j, j]
        kept = pivot > threshold
        column = torch.where(kept, rest[:, j] / torch.where(kept, pivot, 1.0).sqrt(), 0.0)
        factor[j:, j] = column[j:]
        rest = rest - torch.outer(column, column)
    kept_rows = factor.diagonal() > 0
    # Weak rows become rows of the identity so that the triangular solve is regular, with a zero right-hand side.
    regular = torch.where(kept_rows[:, None], factor, torch.eye(k, dtype=factor.dtype, device=factor.device))
    inverse = torch.linalg.solve_triangular(regular, torch.diag(kept_rows.to(factor.dtype)), upper=False)
    return factor, inverse
