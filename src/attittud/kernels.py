"""Passes over V at the speed of memory, for CUDA and float32 vectors: each reads the long rows once.

Written in Triton, which comes with torch's CUDA builds; `linalg` has the same operations in plain torch for everything
else, and the tests compare the two. Sums leave a block in float32 and are added up in float64, without atomics, so that
a result is the same in every run.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

# Numbers in a tile (rows x columns), the fastest of those tried on an H200.
_TILE = {"transform": 8192, "products": 16384, "lift": 8192}
MOST_ROWS = 64  # a k x k factor of more rows would not fit beside the tile; plain torch takes over


def _padded(rows: int) -> int:
    """Tensor-core shapes start at 16."""
    return max(16, triton.next_power_of_2(rows))


@cache
def _programs(device: torch.device) -> int:
    return 4 * torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def _gram(rows, out, k, size, stride, K: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    row, column = tl.arange(0, K), tl.arange(0, BLOCK)
    total = tl.zeros((K, K), dtype=tl.float64)
    for block in range(program, tl.cdiv(size, BLOCK * TILES), programs):
        part = tl.zeros((K, K), dtype=tl.float32)
        for tile in range(TILES):
            at = (block.to(tl.int64) * TILES + tile) * BLOCK + column
            mask = (row[:, None] < k) & (at[None, :] < size)
            here = tl.load(rows + row[:, None].to(tl.int64) * stride + at[None, :], mask=mask, other=0.0)
            # Three TF32 products: the precision of float32 on tensor cores.
            part = tl.dot(here, tl.trans(here), part, input_precision="tf32x3")
        total += part.to(tl.float64)
    tl.store(out + program * K * K + row[:, None] * K + row[None, :], total)


@triton.jit
def _transform(rows, matrix, k, kept, size, stride, K: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    row, column = tl.arange(0, K), tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + column
    inside = at[None, :] < size
    place = rows + row[:, None].to(tl.int64) * stride + at[None, :]
    tile = tl.load(place, mask=(row[:, None] < k) & inside, other=0.0)
    factor = tl.load(matrix + row[:, None] * K + row[None, :])
    result = tl.dot(factor, tile, input_precision=PRECISION)
    tl.store(place, result, mask=(row[:, None] < kept) & inside)


@triton.jit
def _products(rows, x, y, out, k, size, stride, K: tl.constexpr, BLOCK: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    row, column = tl.arange(0, K), tl.arange(0, BLOCK)
    a, p = tl.zeros((K,), dtype=tl.float64), tl.zeros((K,), dtype=tl.float64)
    xx = tl.zeros((BLOCK,), dtype=tl.float64)
    yy, xy = tl.zeros((BLOCK,), dtype=tl.float64), tl.zeros((BLOCK,), dtype=tl.float64)
    for block in range(program, tl.cdiv(size, BLOCK), programs):
        at = block.to(tl.int64) * BLOCK + column
        inside = at < size
        tile = tl.load(
            rows + row[:, None].to(tl.int64) * stride + at[None, :],
            mask=(row[:, None] < k) & inside[None, :],
            other=0.0,
        ).to(tl.float32)
        u = tl.load(x + at, mask=inside, other=0.0)
        a += tl.sum(tile * u[None, :], axis=1).to(tl.float64)
        v = tl.load(y + at, mask=inside, other=0.0)
        p += tl.sum(tile * v[None, :], axis=1).to(tl.float64)
        u, v = u.to(tl.float64), v.to(tl.float64)
        xx += u * u
        yy += v * v
        xy += u * v
    out += program * (2 * K + 3)
    tl.store(out + row, a)
    tl.store(out + K + row, p)
    tl.store(out + 2 * K, tl.sum(xx))
    tl.store(out + 2 * K + 1, tl.sum(yy))
    tl.store(out + 2 * K + 2, tl.sum(xy))


@triton.jit
def _lift(rows, weights, x, y, scales, k, size, stride, K: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.arange(0, K), tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + column
    inside = at < size
    tile = tl.load(
        rows + row[:, None].to(tl.int64) * stride + at[None, :],
        mask=(row[:, None] < k) & inside[None, :],
        other=0.0,
    ).to(tl.float32)
    weight = tl.load(weights + row, mask=row < k, other=0.0)
    u = tl.load(x + at, mask=inside, other=0.0)
    v = tl.load(y + at, mask=inside, other=0.0)
    result = tl.load(scales) * u + tl.sum(tile * weight[:, None], axis=0)
    tl.store(x + at, result + tl.load(scales + 1) * v, mask=inside)


def gram(rows: Tensor) -> Tensor:
    """rows @ rowsᵀ, summed in float64."""
    k, size = rows.shape
    K, programs = _padded(k), 4 * _programs(rows.device)
    parts = torch.empty(programs, K, K, dtype=torch.float64, device=rows.device)
    # One warp to a block: a k x k result is too small to share.
    block = 128 if K == 16 else 64
    _gram[(programs,)](rows, parts, k, size, rows.stride(0), K=K, BLOCK=block, TILES=8, num_warps=1)
    return parts.sum(0)[:k, :k]


def transform_(rows: Tensor, matrix: Tensor) -> Tensor:
    """The first rows of `rows` become `matrix @ rows`; returns those rows."""
    (k, size), kept = rows.shape, matrix.shape[0]
    K = _padded(k)
    padded = torch.zeros(K, K, dtype=torch.float32, device=rows.device)
    padded[:kept, :k] = matrix
    block, precision = (_TILE["transform"] // K, "ieee") if K == 16 else (128, "tf32x3")
    _transform[(triton.cdiv(size, block),)](
        rows, padded, k, kept, size, rows.stride(0), K=K, BLOCK=block, PRECISION=precision
    )
    return rows[:kept]


def products(rows: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """rows @ x, rows @ y, ⟨x, x⟩, ⟨y, y⟩ and ⟨x, y⟩, all float64, in one pass."""
    k, size = rows.shape
    K, programs = _padded(k), _programs(rows.device)
    parts = torch.empty(programs, 2 * K + 3, dtype=torch.float64, device=rows.device)
    _products[(programs,)](rows, x, y, parts, k, size, rows.stride(0), K=K, BLOCK=_TILE["products"] // K)
    total = parts.sum(0)
    return total[:k], total[K : K + k], total[2 * K], total[2 * K + 1], total[2 * K + 2]


def lift_(rows: Tensor, weights: Tensor, x: Tensor, y: Tensor, scales: Tensor) -> None:
    """x becomes scales[0] * x + rowsᵀ weights + scales[1] * y, each product and each sum rounded on its own."""
    k, size = rows.shape
    K = _padded(k)
    block = _TILE["lift"] // K
    # fp_fusion off: a fused multiply-add would differ from torch in the last bit.
    _lift[(triton.cdiv(size, block),)](
        rows, weights.float(), x, y, scales.float(), k, size, rows.stride(0), K=K, BLOCK=block, enable_fp_fusion=False
    )
