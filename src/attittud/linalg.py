"""Linear algebra on long rows, by chunks of columns so that no D-sized copy is made.

Sums of products are float64 whatever the storage: then TF32 or bf16 settings of the user do not matter here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch
from torch import Tensor


@cache
def _kernels() -> ModuleType | None:
    """The Triton versions; only torch's CUDA builds come with Triton."""
    try:
        from attittud import kernels
    except ImportError:
        return None
    return kernels


def _fast(rows: Tensor, *vectors: Tensor) -> ModuleType | None:
    """The kernels where they serve these rows: float32, or half precision that only meets float32 vectors."""
    short = bool(vectors) and rows.dtype in (torch.bfloat16, torch.float16)
    if not rows.is_cuda or not (short or rows.dtype == torch.float32) or rows.stride(1) != 1:
        return None
    if any(vector.dtype != torch.float32 for vector in vectors):
        return None
    found = _kernels()
    return found if found is not None and rows.shape[0] <= found.MOST_ROWS else None


def chunk_size(x: Tensor) -> int:
    """Columns handled at once: their float64 copy takes 1 MB (cache), or 128 MB on a GPU (few launches)."""
    return max(1, ((1 << 17) if x.device.type == "cpu" else (1 << 24)) // (x.shape[0] if x.ndim == 2 else 1))


def dot(x: Tensor, y: Tensor) -> Tensor:
    """⟨x, y⟩: differences of such numbers decide whether a gradient lies in the span."""
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    size = chunk_size(x)
    for u, v in zip(x.split(size), y.split(size), strict=True):
        total += torch.dot(u.double(), v.double())
    return total


def project(rows: Tensor, vector: Tensor) -> Tensor:
    """rows @ vector, in the vector's type whatever the storage of the rows and the user's autocast; float64."""
    with torch.autocast(rows.device.type, enabled=False):
        if rows.dtype == vector.dtype:
            return rows.mv(vector).double()
        size = chunk_size(rows)
        pairs = zip(rows.split(size, dim=1), vector.split(size), strict=True)
        return torch.stack([chunk.to(piece.dtype).mv(piece).double() for chunk, piece in pairs]).sum(0)


@dataclass(frozen=True)
class Products:
    """All that a step needs to know of two vectors x and y in the span of some rows and as a whole; float64."""

    rows_x: Tensor
    rows_y: Tensor
    xx: Tensor
    yy: Tensor
    xy: Tensor


def products(rows: Tensor, x: Tensor, y: Tensor) -> Products:
    """One pass over the rows where a kernel serves."""
    if fast := _fast(rows, x, y):
        return Products(*fast.products(rows, x, y))
    return Products(project(rows, x), project(rows, y), dot(x, x), dot(y, y), dot(x, y))


def lift_(rows: Tensor, weights: Tensor, x: Tensor, y: Tensor, x_factor: Tensor | float, y_factor: Tensor) -> Tensor:
    """x becomes x_factor * x + rowsᵀ weights + y_factor * y; y may be overwritten.

    A multiplication and an addition each, no fused operation: zero weights give x_factor * x + y_factor * y to the bit.
    """
    if fast := _fast(rows, x, y):
        scale = x_factor if isinstance(x_factor, Tensor) else torch.full_like(y_factor, x_factor)
        fast.lift_(rows, weights, x, y, torch.stack([scale, y_factor]))
        return x
    add_rows_(x.mul_(x_factor), rows, weights)
    return x.add_(y.mul_(y_factor))


def add_rows_(x: Tensor, rows: Tensor, weights: Tensor) -> None:
    """x += rowsᵀ weights."""
    weights = weights.to(x.dtype)
    if rows.dtype == x.dtype:
        x.addmv_(rows.T, weights)
        return
    size = chunk_size(rows)
    for chunk, piece in zip(rows.split(size, dim=1), x.split(size), strict=True):
        piece.addmv_(chunk.to(piece.dtype).T, weights)


def gram(rows: Tensor) -> Tensor:
    """rows @ rowsᵀ."""
    if fast := _fast(rows):
        found: Tensor = fast.gram(rows)
        return found
    total = torch.zeros(rows.shape[0], rows.shape[0], dtype=torch.float64, device=rows.device)
    for chunk in rows.split(chunk_size(rows), dim=1):
        wide = chunk.double()
        total += wide @ wide.T
    return total


def transform_(rows: Tensor, matrix: Tensor) -> Tensor:
    """The first rows of `rows` become `matrix @ rows`; returns those rows."""
    if fast := _fast(rows):
        changed: Tensor = fast.transform_(rows, matrix)
        return changed
    out = rows[: matrix.shape[0]]
    size = chunk_size(rows)
    for target, chunk in zip(out.split(size, dim=1), rows.split(size, dim=1), strict=True):
        target.copy_(matrix @ chunk.double())
    return out
