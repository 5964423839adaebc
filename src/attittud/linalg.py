"""Linear algebra on long rows, by chunks of columns so that no D-sized copy is made.

Sums of products are float64 whatever the storage: then TF32 or bf16 settings of the user do not matter here.
"""

from __future__ import annotations

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


def _fast(rows: Tensor) -> ModuleType | None:
    """The kernels where they serve these rows."""
    if not rows.is_cuda or rows.dtype != torch.float32 or rows.stride(1) != 1:
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


def mv(rows: Tensor, vector: Tensor) -> Tensor:
    """rows @ vector in their own type: inside an autocast region torch would round both to half precision."""
    with torch.autocast(rows.device.type, enabled=False):
        return rows.mv(vector)


def gram(rows: Tensor) -> Tensor:
    """rows @ rowsᵀ."""
    if fast := _fast(rows):
        return fast.gram(rows)
    total = torch.zeros(rows.shape[0], rows.shape[0], dtype=torch.float64, device=rows.device)
    for chunk in rows.split(chunk_size(rows), dim=1):
        wide = chunk.double()
        total += wide @ wide.T
    return total


def transform_(rows: Tensor, matrix: Tensor) -> Tensor:
    """The first rows of `rows` become `matrix @ rows`; returns those rows."""
    if fast := _fast(rows):
        return fast.transform_(rows, matrix)
    out = rows[: matrix.shape[0]]
    size = chunk_size(rows)
    for target, chunk in zip(out.split(size, dim=1), rows.split(size, dim=1), strict=True):
        target.copy_(matrix @ chunk.double())
    return out
