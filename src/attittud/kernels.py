"""Passes over V at the speed of memory, for CUDA and float32 vectors: each reads the long rows once.

Written in Triton, which comes with torch's CUDA builds; `linalg` has the same operations in plain torch for everything
else, and the tests compare the two. Sums are added up in float64 and without atomics, so that a result is the same in
every run.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

# Numbers in a tile (rows x columns), the fastest of those tried on an H200.
_TILE = {"transform": 8192, "products": 16384, "lift": 8192}
_PAIRS = 11  # rows whose pairwise float64 sums fit into the registers of a thread
_GROUP = 8  # of more rows, so many at a time
_THREADS = 128  # the four warps that Triton gives a program
MOST_ROWS = 64  # a k x k factor of more rows would not fit beside the tile; plain torch takes over


def _padded(rows: int) -> int:
    """Tensor-core shapes start at 16."""
    return max(16, triton.next_power_of_2(rows))


@cache
def _programs(device: torch.device) -> int:
    return 4 * torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def _gram(rows, out, size, stride, K: tl.constexpr, BLOCK: tl.constexpr):
    """Sums over all pairs of K rows, one column of each row to a thread, so that nothing is shared or read twice.

    The product of two float32 is exact in float64. The digits beyond float32 are needed: a row that depends on others
    shows as a pivot of 1e-14, which products of float32 precision (tf32x3) drown in noise of 1e-7.
    """
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK).to(tl.int64)
    sums = ()
    for _ in tl.static_range(K * (K + 1) // 2):
        sums = sums + (tl.zeros((BLOCK,), tl.float64),)
    for start in range(program * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = start + column
        tile = ()
        for i in tl.static_range(K):
            row = tl.load(rows + i * tl.cast(stride, tl.int64) + at, mask=at < size, other=0.0)
            tile = tile + (row.to(tl.float64),)
        new = ()
        for i in tl.static_range(K):
            for j in tl.static_range(i + 1):
                new = new + (sums[i * (i + 1) // 2 + j] + tile[i] * tile[j],)
        sums = new
    for i in tl.static_range(K):
        for j in tl.static_range(i + 1):
            tl.store(out + (program * K + i) * K + j, tl.sum(sums[i * (i + 1) // 2 + j]))


@triton.jit
def _gram_groups(rows, out, size, stride, K: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """The same for more rows than registers: a pair of groups of rows per program; neighbours share the cache."""
    first, second, program = tl.program_id(0) * GROUP, tl.program_id(1) * GROUP, tl.program_id(2)
    if second <= first:
        column = tl.arange(0, BLOCK).to(tl.int64)
        sums = ()
        for _ in tl.static_range(GROUP * GROUP):
            sums = sums + (tl.zeros((BLOCK,), tl.float64),)
        for start in range(program * BLOCK, size, tl.num_programs(2) * BLOCK):
            at = start + column
            left, right = (), ()
            for i in tl.static_range(GROUP):
                place = rows + (first + i) * tl.cast(stride, tl.int64) + at
                left = left + (tl.load(place, mask=(at < size) & (first + i < K), other=0.0).to(tl.float64),)
                place = rows + (second + i) * tl.cast(stride, tl.int64) + at
                right = right + (tl.load(place, mask=(at < size) & (second + i < K), other=0.0).to(tl.float64),)
            new = ()
            for i in tl.static_range(GROUP):
                for j in tl.static_range(GROUP):
                    new = new + (sums[i * GROUP + j] + left[i] * right[j],)
            sums = new
        for i in tl.static_range(GROUP):
            for j in tl.static_range(GROUP):
                place = out + (program * K + first + i) * K + second + j
                tl.store(place, tl.sum(sums[i * GROUP + j]), mask=(first + i < K) & (second + j < K))


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
    """rows @ rowsᵀ, products and sums in float64."""
    k, size = rows.shape
    programs = min(_programs(rows.device) * (2 if k <= _PAIRS else 1), triton.cdiv(size, _THREADS))
    parts = torch.empty(programs, k, k, dtype=torch.float64, device=rows.device)
    if k <= _PAIRS:
        _gram[(programs,)](rows, parts, size, rows.stride(0), K=k, BLOCK=_THREADS)
    else:
        groups = triton.cdiv(k, _GROUP)
        _gram_groups[(groups, groups, programs)](rows, parts, size, rows.stride(0), K=k, GROUP=_GROUP, BLOCK=_THREADS)
    lower = parts.sum(0).tril()
    return lower + lower.tril(-1).T


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
