"""rows @ rowsᵀ of float32 rows at the speed of memory, in Triton: each row is fetched once, products and sums are float64."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_FEW = 8  # rows of which many programs have room at a time
_PAIRS = 11  # rows whose pairwise float64 sums fit into the registers of a thread
_QUARTERED = 24  # rows whose pairwise sums fit into those of four
_GROUP = 8  # of more rows, so many at a time
_AHEAD = 6  # tiles on their way from memory, where registers leave too few programs at a time to keep it busy
THREADS = 128  # the four warps that Triton gives a program


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
def _gram(rows, out, size, stride, K: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    """Sums over all pairs of K rows, one column of each row to a thread, so that nothing is shared or read twice.

    The product of two float32 is exact in float64. The digits beyond float32 are needed: a row that depends on others
    shows as a pivot of 1e-14, which products of float32 precision (tf32x3) drown in noise of 1e-7.
    """
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK).to(tl.int64)
    sums = ()
    for _ in tl.static_range(K * (K + 1) // 2):
        sums = sums + (tl.zeros((BLOCK,), tl.float64),)
    for start in tl.range(program * BLOCK, size, tl.num_programs(0) * BLOCK, num_stages=AHEAD):
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
def _gram_quarters(rows, out, size, stride, K: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    """The same for more rows: each warp multiplies a quarter of R rows with itself, the next one and the one after."""
    program = tl.program_id(0)
    warp, quarter = tl.arange(0, 4)[:, None], tl.arange(0, 4)
    column = tl.arange(0, BLOCK)[None, :].to(tl.int64)
    sums = ()
    for _ in tl.static_range(R * (R + 1) // 2 + 2 * R * R):
        sums = sums + (tl.zeros((4, BLOCK), tl.float64),)
    for start in tl.range(program * BLOCK, size, tl.num_programs(0) * BLOCK, num_stages=AHEAD):
        at = start + column
        tile = ()
        for away in tl.static_range(3):
            for i in tl.static_range(R):
                row = (warp + away) % 4 * R + i
                place = rows + row * tl.cast(stride, tl.int64) + at
                tile = tile + (tl.load(place, mask=(at < size) & (row < K), other=0.0).to(tl.float64),)
        new = ()
        for i in tl.static_range(R):
            for j in tl.static_range(i + 1):
                new = new + (sums[i * (i + 1) // 2 + j] + tile[i] * tile[j],)
        for i in tl.static_range(R):
            for j in tl.static_range(2 * R):
                new = new + (sums[R * (R + 1) // 2 + i * 2 * R + j] + tile[i] * tile[R + j],)
        sums = new
    out += program * K * K
    for i in tl.static_range(R):
        row = quarter * R + i
        for j in tl.static_range(i + 1):
            tl.store(out + row * K + quarter * R + j, tl.sum(sums[i * (i + 1) // 2 + j], axis=1), mask=row < K)
        for j in tl.static_range(2 * R):
            other = (quarter + 1 + j // R) % 4 * R + j % R
            place = out + tl.maximum(row, other) * K + tl.minimum(row, other)
            # Opposite quarters meet twice.
            mask = (row < K) & (other < K) & ((j < R) | (quarter < 2))
            tl.store(place, tl.sum(sums[R * (R + 1) // 2 + i * 2 * R + j], axis=1), mask=mask)


@triton.jit
def _gram_groups(rows, out, size, stride, K: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """The same for still more rows: a pair of groups of rows per program; neighbours share the cache."""
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


def gram(rows: Tensor) -> Tensor:
    """rows @ rowsᵀ, products and sums in float64."""
    (k, size), stride = rows.shape, rows.stride(0)
    most, block = 4 * processors(rows.device), THREADS
    if k <= _PAIRS:
        most *= 2
    elif k <= _QUARTERED:
        most, block = 4 * most, THREADS // 4
    programs = min(most, triton.cdiv(size, block))
    parts = torch.empty(programs, k, k, dtype=torch.float64, device=rows.device)
    if k <= _PAIRS:
        _gram[(programs,)](rows, parts, size, stride, K=k, BLOCK=block, AHEAD=_AHEAD if k > _FEW else 1)
    elif k <= _QUARTERED:
        quarter = triton.cdiv(k, 4)
        _gram_quarters[(programs,)](rows, parts, size, stride, K=k, R=quarter, BLOCK=block, AHEAD=_AHEAD)
    else:
        groups = triton.cdiv(k, _GROUP)
        _gram_groups[(groups, groups, programs)](rows, parts, size, stride, K=k, GROUP=_GROUP, BLOCK=block)
    lower = parts.sum(0).tril()
    return lower + lower.tril(-1).T
