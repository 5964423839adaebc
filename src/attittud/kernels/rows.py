"""Passes over V at the speed of memory, for CUDA and float32 vectors: each reads the long rows once.

Written in Triton, which comes with torch's CUDA builds; `linalg` has the same operations in plain torch for everything
else, and the tests compare the two. Sums are added up in float64 and without atomics, so that a result is the same in
every run. What engines need of single layers, with sums in float32, has files of its own and is found here too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attittud.kernels.channels import channel_sums, serves_channels
from attittud.kernels.gram import THREADS, gram, processors
from attittud.kernels.windows import add_windows_, serves_windows

__all__ = [
    "add_product_",
    "add_windows_",
    "channel_sums",
    "factorise",
    "gram",
    "lift_",
    "products",
    "serves_channels",
    "serves_windows",
    "take_",
    "transform_",
]

# What follows was the fastest of what was tried on an H200.
_TILE = 8192  # numbers in a tile (rows x columns)
_FEW, _FOURFOLD = 5, 10  # rows up to which `products` runs many programs at a time; gives a thread four columns
_UNROLLED = 20  # rows of which a thread holds a column, and twice as many sums
LEAST_COLUMNS = 1 << 17  # of a product of matrices that keeps all of a GPU busy, a thread holding whole columns
MOST_SUMS = 12  # its rows; libraries are as fast with more
MOST_ROWS = 64  # a k x k factor of more rows would not fit beside the tile; plain torch takes over


def _padded(rows: int) -> int:
    """Tensor-core shapes start at 16."""
    return max(16, triton.next_power_of_2(rows))


@triton.jit
def _transform(rows, matrix, size, stride, R: tl.constexpr, K: tl.constexpr, LOWER: tl.constexpr, BLOCK: tl.constexpr):
    """R rows from K, sums in float64; LOWER leaves the zeros of a lower triangular matrix out."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    tile = ()
    for j in tl.static_range(K):
        tile = tile + (tl.load(rows + j * tl.cast(stride, tl.int64) + at, mask=inside, other=0.0).to(tl.float64),)
    for i in tl.static_range(R):
        total = tl.zeros((BLOCK,), tl.float64)
        for j in tl.static_range(i + 1 if LOWER else K):
            total += tl.load(matrix + i * K + j) * tile[j]
        tl.store(rows + i * tl.cast(stride, tl.int64) + at, total.to(tl.float32), mask=inside)


@triton.jit
def _transform_wide(rows, matrix, k, kept, size, stride, K: tl.constexpr, BLOCK: tl.constexpr):
    """The same for more rows than a thread can hold."""
    row, column = tl.arange(0, K), tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + column
    inside = at[None, :] < size
    place = rows + row[:, None].to(tl.int64) * stride + at[None, :]
    tile = tl.load(place, mask=(row[:, None] < k) & inside, other=0.0)
    factor = tl.load(matrix + row[:, None] * K + row[None, :])
    result = tl.dot(factor, tile, input_precision="tf32x3")
    tl.store(place, result, mask=(row[:, None] < kept) & inside)


@triton.jit
def _factorise(matrix, factor, inverse, smallest, k, K: tl.constexpr):
    """Cholesky and the inverse of the factor side by side, column by column, in one program."""
    i, j = tl.arange(0, K)[:, None], tl.arange(0, K)[None, :]
    inside = (i < k) & (j < k)
    rest = tl.load(matrix + i * k + j, mask=inside, other=0.0)
    threshold = smallest * tl.max(tl.where(i == j, rest, 0.0))
    lower, inverted = tl.zeros((K, K), tl.float64), tl.where(i == j, 1.0, 0.0).to(tl.float64)
    for step in range(k):
        column = tl.sum(tl.where(j == step, rest, 0.0), axis=1)[:, None]
        pivot = tl.sum(tl.where((i == step) & (j == step), rest, 0.0))
        kept = pivot > threshold
        length = tl.sqrt(tl.where(kept, pivot, 1.0))
        column = tl.where(kept, column / length, 0.0)
        row = tl.sum(tl.where(i == step, inverted, 0.0), axis=0)[None, :]
        row = tl.where(kept, row / length, 0.0)
        lower = tl.where((j == step) & (i >= step), column, lower)
        inverted = tl.where(i == step, row, tl.where(i > step, inverted - column * row, inverted))
        rest = rest - column * tl.trans(column)
    tl.store(factor + i * k + j, lower, mask=inside)
    tl.store(inverse + i * k + j, inverted, mask=inside)


@triton.jit
def _products(rows, x, y, out, size, stride, K: tl.constexpr, BLOCK: tl.constexpr):
    """Columns of their own to each thread, products and sums in float64: they decide signs."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK).to(tl.int64)
    a, p = (), ()
    for _ in tl.static_range(K):
        a = a + (tl.zeros((BLOCK,), tl.float64),)
        p = p + (tl.zeros((BLOCK,), tl.float64),)
    xx = tl.zeros((BLOCK,), tl.float64)
    yy, xy = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(program * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = start + column
        inside = at < size
        u = tl.load(x + at, mask=inside, other=0.0).to(tl.float64)
        v = tl.load(y + at, mask=inside, other=0.0).to(tl.float64)
        new_a, new_p = (), ()
        for j in tl.static_range(K):
            row = tl.load(rows + j * tl.cast(stride, tl.int64) + at, mask=inside, other=0.0).to(tl.float64)
            new_a = new_a + (a[j] + row * u,)
            new_p = new_p + (p[j] + row * v,)
        a, p = new_a, new_p
        xx += u * u
        yy += v * v
        xy += u * v
    out += program * (2 * K + 3)
    for j in tl.static_range(K):
        tl.store(out + j, tl.sum(a[j]))
        tl.store(out + K + j, tl.sum(p[j]))
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


@triton.jit
def _add_product(
    out, weights, rows, m, size, out_stride, stride, k_stride, m_stride, K: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    sums = ()
    for j in tl.static_range(K):
        sums = sums + (tl.load(out + j * tl.cast(out_stride, tl.int64) + at, mask=inside, other=0.0),)
    for i in range(m):
        row = tl.load(rows + i * tl.cast(stride, tl.int64) + at, mask=inside, other=0.0)
        new = ()
        for j in tl.static_range(K):
            new = new + (sums[j] + tl.load(weights + j * k_stride + i * m_stride) * row,)
        sums = new
    for j in tl.static_range(K):
        tl.store(out + j * tl.cast(out_stride, tl.int64) + at, sums[j], mask=inside)


@triton.jit
def _take(old, new, finite, size, BLOCK: tl.constexpr):
    if tl.load(finite) != 0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(old + at, tl.load(new + at, mask=at < size), mask=at < size)


def transform_(rows: Tensor, matrix: Tensor, lower: bool) -> Tensor:
    """The first rows of `rows` become `matrix @ rows`; returns those rows."""
    (k, size), kept, stride = rows.shape, matrix.shape[0], rows.stride(0)
    if k <= _UNROLLED:
        grid, factor = (triton.cdiv(size, 2 * THREADS),), matrix.double().contiguous()
        _transform[grid](rows, factor, size, stride, R=kept, K=k, LOWER=lower, BLOCK=2 * THREADS)
    else:
        K = _padded(k)
        padded = torch.zeros(K, K, dtype=torch.float32, device=rows.device)
        padded[:kept, :k] = matrix
        _transform_wide[(triton.cdiv(size, THREADS),)](rows, padded, k, kept, size, stride, K=K, BLOCK=THREADS)
    return rows[:kept]


def factorise(matrix: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """The lower factor of a float64 Gram matrix and its inverse, both without the directions below the tolerance."""
    k = matrix.shape[0]
    factor, inverse = torch.empty(2, k, k, dtype=matrix.dtype, device=matrix.device)
    K = _padded(k)
    _factorise[(1,)](matrix.contiguous(), factor, inverse, tolerance**2, k, K=K, num_warps=1 if K == 16 else 4)
    return factor, inverse


def products(rows: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """rows @ x, rows @ y, ⟨x, x⟩, ⟨y, y⟩ and ⟨x, y⟩, all float64, in one pass."""
    totals = []
    for some in rows.split(_UNROLLED):
        k, size = some.shape
        if k <= _FEW:  # many programs at a time
            each, at_a_time = 1, 8
        else:  # as many columns to a thread as registers hold, in one load
            each, at_a_time = 4 if k <= _FOURFOLD else 2, 2
        programs = min(at_a_time * processors(rows.device), triton.cdiv(size, each * THREADS))
        parts = torch.empty(programs, 2 * k + 3, dtype=torch.float64, device=rows.device)
        _products[(programs,)](some, x, y, parts, size, rows.stride(0), K=k, BLOCK=each * THREADS)
        totals.append(parts.sum(0))
    halves = [total[:-3].chunk(2) for total in totals]
    with_x, with_y = halves[0] if len(halves) == 1 else (torch.cat(some) for some in zip(*halves, strict=True))
    return with_x, with_y, totals[0][-3], totals[0][-2], totals[0][-1]


def lift_(rows: Tensor, weights: Tensor, x: Tensor, y: Tensor, scales: Tensor) -> None:
    """x becomes scales[0] * x + rowsᵀ weights + scales[1] * y, each product and each sum rounded on its own."""
    k, size = rows.shape
    K = _padded(k)
    block = _TILE // K
    # fp_fusion off: a fused multiply-add would differ from torch in the last bit.
    _lift[(triton.cdiv(size, block),)](
        rows, weights.float(), x, y, scales.float(), k, size, rows.stride(0), K=K, BLOCK=block, enable_fp_fusion=False
    )


def take_(old: Tensor, new: Tensor, finite: Tensor) -> None:
    """old becomes new where `finite` (one boolean) holds; else old is not even read."""
    block = 8 * THREADS
    _take[(triton.cdiv(new.numel(), block),)](old, new, finite.view(torch.uint8), new.numel(), BLOCK=block)


def add_product_(out: Tensor, weights: Tensor, rows: Tensor) -> None:
    """out (k x D, few rows) += weights (k x m) @ rows."""
    m, size = rows.shape
    _add_product[(triton.cdiv(size, 4 * THREADS),)](
        out, weights, rows, m, size, out.stride(0), rows.stride(0), *weights.stride(), K=len(out), BLOCK=4 * THREADS
    )
