"""Gram-Schmidt of the rows of a k x D matrix, in row order, in place.

By Cholesky of the Gram matrix, twice: two reads and a write of the matrix per pass instead of a D x k QR. The Gram
matrix and the k x k factor are float64. No operation waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attittud.kernels.products import factorise, gram, transform_


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
    factor, inverse = factorise(torch.where(finite, first, 0.0), tolerance(rows.dtype))
    transform_(rows, inverse, lower=True)
    again, inverse = factorise(torch.where(finite, sum_columns(gram(rows)), 0.0), 0.5)
    transform_(rows, inverse, lower=True)
    return Rows(factor @ again, finite)
