"""Products with long rows, by Triton kernels where possible, else in chunks of columns, so that no
copy of length D is made.

`dot` and `gram` multiply and sum in float64 for every storage type.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor


@cache
def kernels() -> ModuleType | None:
    """Return the Triton versions of the functions here. Only torch's CUDA builds come with
    Triton.
    """
    try:
        from attittud.kernels import cuda
    except ImportError:
        return None
    return cuda


def _fast(rows: Tensor, *vectors: Tensor) -> ModuleType | None:
    """Return the kernels if they support these operands, else None. The rows must be on a GPU and
    float32, or half precision that is multiplied with float32 vectors, and not too many.
    """
    half_with_vectors = bool(vectors) and rows.dtype in (torch.bfloat16, torch.float16)
    supported_type = half_with_vectors or rows.dtype == torch.float32
    if not rows.is_cuda or not supported_type or rows.stride(1) != 1:
        return None
    if any(vector.dtype != torch.float32 for vector in vectors):
        return None
    cuda = kernels()
    if cuda is None or rows.shape[0] > cuda.MOST_ROWS:
        return None
    return cuda


def chunk_size(x: Tensor) -> int:
    """Return how many columns of `x` (D, or r x D) are handled at once. Their float64 copy takes 1
    MB (fits a cache), or 128 MB on a GPU (few launches).
    """
    numbers = 1 << 24
    if x.device.type == "cpu":
        numbers = 1 << 17
    rows = 1
    if x.ndim == 2:
        rows = x.shape[0]
    return max(1, numbers // rows)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Return ⟨x, y⟩ in float64, because differences of such numbers decide whether a gradient lies in the
    span.
    """
    if x.is_cuda and y.stride(0) == 1 and (fast := _fast(x[None], y)):
        product: Tensor = fast.dot(x, y)
        return product
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    size = chunk_size(x)
    for u, v in zip(x.split(size), y.split(size), strict=True):
        total += torch.dot(u.double(), v.double())
    return total


def project(rows: Tensor, vector: Tensor) -> Tensor:
    """Return rows (k x D) @ vector (D) as float64. Products and sums within a chunk are in the
    vector's type, whatever the type of the rows, also under autocast.
    """
    with torch.autocast(rows.device.type, enabled=False):
        if rows.dtype == vector.dtype:
            return rows.mv(vector).double()
        size = chunk_size(rows)
        pairs = zip(rows.split(size, dim=1), vector.split(size), strict=True)
        return torch.stack([chunk.to(part.dtype).mv(part).double() for chunk, part in pairs]).sum(0)


class Products(NamedTuple):
    """All inner products that a step needs: of two vectors x and y with some rows (k x D) and with
    each other; float64.
    """

    rows_x: Tensor
    """rows @ x (k)."""
    rows_y: Tensor
    """rows @ y (k)."""
    xx: Tensor
    """⟨x, x⟩."""
    yy: Tensor
    """⟨y, y⟩."""
    xy: Tensor
    """⟨x, y⟩."""


def products(rows: Tensor, x: Tensor, y: Tensor) -> Products:
    """Compute all inner products of a step, in one pass over the rows if a kernel supports that."""
    if fast := _fast(rows, x, y):
        return Products(*fast.products(rows, x, y))
    return Products(project(rows, x), project(rows, y), dot(x, x), dot(y, y), dot(x, y))


def lift_(
    rows: Tensor, weights: Tensor, x: Tensor, y: Tensor, x_factor: Tensor | float, y_factor: Tensor
) -> Tensor:
    """Overwrite x (D) with x_factor * x + rowsᵀ weights + y_factor * y and return it; y (D) may be
    overwritten too. `weights` has a number for each row.

    Multiplication and addition are not fused, so zero weights give exactly x_factor * x + y_factor
    * y.
    """
    if fast := _fast(rows, x, y):
        if not isinstance(x_factor, Tensor):
            x_factor = torch.full_like(y_factor, x_factor)
        fast.lift_(rows, weights, x, y, torch.stack([x_factor, y_factor]))
        return x
    add_rows_(x.mul_(x_factor), rows, weights)
    return x.add_(y.mul_(y_factor))


def add_rows_(x: Tensor, rows: Tensor, weights: Tensor) -> None:
    """Add rowsᵀ weights to x (D) in place, in the type of x; `weights` has a number for each of the
    rows (k x D).
    """
    weights = weights.to(x.dtype)
    if rows.dtype == x.dtype:
        x.addmv_(rows.T, weights)
        return
    size = chunk_size(rows)
    for chunk, part in zip(rows.split(size, dim=1), x.split(size), strict=True):
        part.addmv_(chunk.to(part.dtype).T, weights)


def add_product_(out: Tensor, weights: Tensor, rows: Tensor) -> None:
    """Add weights (k x m) @ rows (m x D) to `out` (k x D) in place.

    A kernel does this on a GPU for few rows of float32 and many columns; torch does it otherwise.
    """
    cuda = kernels() if out.is_cuda else None
    if cuda is not None and out.shape[1] >= cuda.LEAST_COLUMNS and out.shape[0] <= cuda.MOST_SUMS:
        floats = out.dtype == weights.dtype == rows.dtype == torch.float32
        if floats and out.stride(1) == rows.stride(1) == 1:
            cuda.add_product_(out, weights, rows)
            return
    out.addmm_(weights, rows)


def gram(rows: Tensor) -> Tensor:
    """Return rows (k x D) @ rowsᵀ, k x k in float64."""
    if fast := _fast(rows):
        product: Tensor = fast.gram(rows)
        return product
    total = torch.zeros(rows.shape[0], rows.shape[0], dtype=torch.float64, device=rows.device)
    for chunk in rows.split(chunk_size(rows), dim=1):
        wide = chunk.double()
        total += wide @ wide.T
    return total


def transform_(rows: Tensor, matrix: Tensor, *, lower: bool = False) -> Tensor:
    """Overwrite the first l rows of `rows` (k x D) with `matrix` (l x k) @ rows, and return those l
    rows. `lower`: the matrix is lower triangular.
    """
    if fast := _fast(rows):
        changed: Tensor = fast.transform_(rows, matrix, lower)
        return changed
    out = rows[: matrix.shape[0]]
    size = chunk_size(rows)
    for target, chunk in zip(out.split(size, dim=1), rows.split(size, dim=1), strict=True):
        target.copy_(matrix @ chunk.double())
    return out


def factorise(matrix: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the lower factor L of a float64 Gram matrix G = L Lᵀ (k x k), and L⁻¹.

    A row whose remainder, after the earlier rows are subtracted, is no longer than `tolerance`
    times the longest row counts as dependent: its column of L and its row of L⁻¹ are zero.
    `torch.linalg.cholesky_ex` stops at the first vanishing pivot, but here the later rows still
    count.
    """
    k = matrix.shape[0]
    if matrix.is_cuda and (cuda := kernels()) is not None and k <= cuda.MOST_ROWS:
        # The plain version launches a hundred small operations, which is slow on a GPU.
        pair: tuple[Tensor, Tensor] = cuda.factorise(matrix, tolerance)
        return pair
    rest = matrix.clone()  # the Gram matrix of the remainders
    threshold = tolerance**2 * matrix.diagonal().amax()
    factor = torch.zeros_like(matrix)
    for j in range(k):
        pivot = rest[j, j]
        is_significant = pivot > threshold
        column = torch.where(
            is_significant, rest[:, j] / torch.where(is_significant, pivot, 1.0).sqrt(), 0.0
        )
        factor[j:, j] = column[j:]
        rest = rest - column[:, None] * column
    is_strong = factor.diagonal() > 0
    # Weak rows become rows of the identity with a zero right-hand side, so that the triangular
    # solve is regular.
    identity = torch.eye(k, dtype=factor.dtype, device=factor.device)
    regular = torch.where(is_strong[:, None], factor, identity)
    right_side = torch.diag(is_strong.to(factor.dtype))
    inverse = torch.linalg.solve_triangular(regular, right_side, upper=False)
    return factor, inverse


def take_(old: Tensor, new: Tensor, finite: Tensor) -> None:
    """Copy `new` into `old` if `finite`, a boolean on the device, is true; row by row, so that no
    large copy is made.
    """
    if (fast := _fast(new)) and old.is_contiguous() and new.is_contiguous():
        fast.take_(old, new, finite)
        return
    for before, after in zip(old, new, strict=True):
        if after.dtype == before.dtype:
            torch.where(finite, after, before, out=before)
        else:
            before.copy_(torch.where(finite, after, before))
