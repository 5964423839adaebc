"""Kernels in Triton, which comes with torch's CUDA builds: passes over V at the speed of memory,
and sums over single layers.

Each kernel reads its long operand once. `attittud.kernels` has the same operations in plain torch
for all other cases, and the tests compare both. Sums use no atomics, so a result is the same in
every run. Inner products over V are float64, and sums over single layers, which engines need, are
float32. The numbers below were the fastest that we tried on an H200.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import ParamSpec, TypeVar, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
THREADS = 128  # four warps, Triton's default for a program
MOST_ROWS = 64  # a k x k factor of more rows would not fit next to the tile; then torch is used
MOST_SUMS = 12  # rows of `add_product_`; with more rows, libraries are as fast
LEAST_COLUMNS = 1 << 17  # columns that keep a whole GPU busy, each thread holding whole columns
_TILE = 8192  # numbers in a tile (rows x columns)
_FEW = 5  # rows up to which `products` runs many programs at a time
_FOURFOLD = 10  # rows up to which it gives a thread four columns
_UNROLLED = 20  # rows up to which a thread holds one column, with twice as many sums
_GROUP = 8  # rows whose products with as many others `gram` sums at a time
_GRAM_AHEAD = 3  # tiles that `gram` loads at once


def _on_its_device(launch: Callable[P, R]) -> Callable[P, R]:
    """Launch a kernel on the device of its first tensor; Triton would use the current device."""

    @wraps(launch)
    def launched(*args: P.args, **options: P.kwargs) -> R:
        device = cast(Tensor, args[0]).device
        if device.index == torch.cuda.current_device():
            return launch(*args, **options)
        with torch.cuda.device(device):
            return launch(*args, **options)

    return launched


@cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def _padded(rows: int) -> int:
    """Round up to a shape that tensor cores support; these start at 16."""
    return max(16, triton.next_power_of_2(rows))


@triton.jit
def _gram(
    rows,
    out,
    size,
    stride,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Compute parts of the inner products of all pairs of K rows of length `size`, `stride` elements
    apart. The sums of program p along the third axis go to out[p] (K x K); a sum over p is left to
    the caller.

    Each program takes a pair of groups of GROUP rows, and each thread one column of BLOCK columns
    at a time. Neighbouring programs share the cache. Only pairs of groups at or below the diagonal
    are computed.

    The product of two float32 numbers is exact in float64. The digits beyond float32 are needed: a
    row that depends on others has a pivot of 1e-14, which would vanish in the noise of 1e-7 of
    float32 products (tf32x3).
    """
    first, second, program = tl.program_id(0) * GROUP, tl.program_id(1) * GROUP, tl.program_id(2)
    if second <= first:
        column = tl.arange(0, BLOCK).to(tl.int64)
        sums = ()
        for _ in tl.static_range(GROUP * GROUP):
            sums = sums + (tl.zeros((BLOCK,), tl.float64),)
        for start in tl.range(program * BLOCK, size, tl.num_programs(2) * BLOCK, num_stages=AHEAD):
            at = start + column
            left, right = (), ()
            for i in tl.static_range(GROUP):
                place = rows + (first + i) * tl.cast(stride, tl.int64) + at
                left = left + (
                    tl.load(place, mask=(at < size) & (first + i < K), other=0.0).to(tl.float64),
                )
                place = rows + (second + i) * tl.cast(stride, tl.int64) + at
                right = right + (
                    tl.load(place, mask=(at < size) & (second + i < K), other=0.0).to(tl.float64),
                )
            new = ()
            for i in tl.static_range(GROUP):
                for j in tl.static_range(GROUP):
                    new = new + (sums[i * GROUP + j] + left[i] * right[j],)
            sums = new
        for i in tl.static_range(GROUP):
            for j in tl.static_range(GROUP):
                place = out + (program * K + first + i) * K + second + j
                tl.store(
                    place, tl.sum(sums[i * GROUP + j]), mask=(first + i < K) & (second + j < K)
                )


@_on_its_device
def gram(rows: Tensor) -> Tensor:
    """Return rows (k x D) @ rowsᵀ, products and sums in float64."""
    k, size = rows.shape
    stride = rows.stride(0)
    groups = triton.cdiv(k, _GROUP)
    programs = min(8 * processors(rows.device), triton.cdiv(size, THREADS))
    parts = torch.empty(programs, k, k, dtype=torch.float64, device=rows.device)
    # Groups of equal size, so that as few rows as possible are missing in the last one.
    _gram[(groups, groups, programs)](
        rows,
        parts,
        size,
        stride,
        K=k,
        GROUP=triton.cdiv(k, groups),
        BLOCK=THREADS,
        AHEAD=_GRAM_AHEAD,
    )
    # Pairs of groups above the diagonal are not computed.
    lower = parts.sum(0).tril()
    return lower + lower.tril(-1).T


@triton.jit
def _transform(
    rows,
    matrix,
    size,
    stride,
    R: tl.constexpr,
    K: tl.constexpr,
    LOWER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite the first R of K rows with `matrix` (R x K, float64) @ rows. Each thread holds all
    rows of its columns, with sums in float64. LOWER skips the zeros of a lower triangular matrix.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    tile = ()
    for j in tl.static_range(K):
        tile = tile + (
            tl.load(rows + j * tl.cast(stride, tl.int64) + at, mask=inside, other=0.0).to(
                tl.float64
            ),
        )
    for i in tl.static_range(R):
        total = tl.zeros((BLOCK,), tl.float64)
        for j in tl.static_range(i + 1 if LOWER else K):
            total += tl.load(matrix + i * K + j) * tile[j]
        tl.store(rows + i * tl.cast(stride, tl.int64) + at, total.to(tl.float32), mask=inside)


@triton.jit
def _transform_wide(rows, matrix, k, count, size, stride, K: tl.constexpr, BLOCK: tl.constexpr):
    """Overwrite the first `count` of k rows with `matrix` (K x K float32, padded with zeros) @ rows,
    for more rows than a thread of `_transform` can hold. A program multiplies a tile of BLOCK columns
    on tensor cores.
    """
    row, column = tl.arange(0, K), tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * BLOCK + column
    inside = at[None, :] < size
    place = rows + row[:, None].to(tl.int64) * stride + at[None, :]
    tile = tl.load(place, mask=(row[:, None] < k) & inside, other=0.0)
    factor = tl.load(matrix + row[:, None] * K + row[None, :])
    result = tl.dot(factor, tile, input_precision="tf32x3")
    tl.store(place, result, mask=(row[:, None] < count) & inside)


@triton.jit
def _factorise(matrix, factor, inverse, smallest, k, K: tl.constexpr):
    """Compute the Cholesky factor of `matrix` (k x k, padded to K x K) and the inverse of the factor
    together, column by column, in one program.

    In step j, `rest` is the Gram matrix of what the first j rows leave of all rows, and `inverted`
    has had the same row operations as the identity. A pivot of at most `smallest` times the largest
    diagonal element counts as zero: its column and its row of the inverse become zero.
    """
    i, j = tl.arange(0, K)[:, None], tl.arange(0, K)[None, :]
    inside = (i < k) & (j < k)
    rest = tl.load(matrix + i * k + j, mask=inside, other=0.0)
    threshold = smallest * tl.max(tl.where(i == j, rest, 0.0))
    lower, inverted = tl.zeros((K, K), tl.float64), tl.where(i == j, 1.0, 0.0).to(tl.float64)
    for step in range(k):
        column = tl.sum(tl.where(j == step, rest, 0.0), axis=1)[:, None]
        pivot = tl.sum(tl.where((i == step) & (j == step), rest, 0.0))
        is_significant = pivot > threshold
        length = tl.sqrt(tl.where(is_significant, pivot, 1.0))
        column = tl.where(is_significant, column / length, 0.0)
        row = tl.sum(tl.where(i == step, inverted, 0.0), axis=0)[None, :]
        row = tl.where(is_significant, row / length, 0.0)
        lower = tl.where((j == step) & (i >= step), column, lower)
        inverted = tl.where(i == step, row, tl.where(i > step, inverted - column * row, inverted))
        rest = rest - column * tl.trans(column)
    tl.store(factor + i * k + j, lower, mask=inside)
    tl.store(inverse + i * k + j, inverted, mask=inside)


@triton.jit
def _products(rows, x, y, out, size, stride, K: tl.constexpr, BLOCK: tl.constexpr):
    """Compute parts of the inner products that `products` returns. Program p writes its sums to
    out[p]: K of the rows with x (`a`), K of the rows with y (`p`), then the sums of xx, yy and xy.

    Each thread has its own columns. Products and sums are float64: they decide signs.
    """
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
            row = tl.load(rows + j * tl.cast(stride, tl.int64) + at, mask=inside, other=0.0).to(
                tl.float64
            )
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
def _dot(x, y, out, size, BLOCK: tl.constexpr):
    """Sums of products in float64, one for each program."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(program * BLOCK, size, tl.num_programs(0) * BLOCK):
        at = start + column
        u = tl.load(x + at, mask=at < size, other=0.0).to(tl.float64)
        v = tl.load(y + at, mask=at < size, other=0.0).to(tl.float64)
        total += u * v
    tl.store(out + program, tl.sum(total))


@triton.jit
def _lift(rows, weights, x, y, scales, k, size, stride, K: tl.constexpr, BLOCK: tl.constexpr):
    """Overwrite BLOCK elements of x with scales[0] * x + weights @ rows + scales[1] * y. The k rows
    are padded to K.
    """
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
    out,
    weights,
    rows,
    m,
    size,
    out_stride,
    stride,
    k_stride,
    m_stride,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add weights (K x m) @ rows (m x size) to `out` (K x size), BLOCK columns in each program. Each
    thread holds the K sums of its columns; the strides are in elements.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    sums = ()
    for j in tl.static_range(K):
        sums = sums + (
            tl.load(out + j * tl.cast(out_stride, tl.int64) + at, mask=inside, other=0.0),
        )
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
    """Copy BLOCK elements of `new` into `old`, unless the byte `finite` is 0."""
    if tl.load(finite) != 0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(old + at, tl.load(new + at, mask=at < size), mask=at < size)


@_on_its_device
def transform_(rows: Tensor, matrix: Tensor, lower: bool) -> Tensor:
    """Overwrite the first l rows of `rows` (k x D) with `matrix` (l x k) @ rows, and return those l
    rows. Up to `_UNROLLED` rows the sums are float64; for more, products have three parts of tf32.
    """
    k, size = rows.shape
    count = matrix.shape[0]
    stride = rows.stride(0)
    if k <= _UNROLLED:
        grid = (triton.cdiv(size, 2 * THREADS),)
        factor = matrix.double().contiguous()
        _transform[grid](rows, factor, size, stride, R=count, K=k, LOWER=lower, BLOCK=2 * THREADS)
    else:
        K = _padded(k)
        padded = torch.zeros(K, K, dtype=torch.float32, device=rows.device)
        padded[:count, :k] = matrix
        _transform_wide[(triton.cdiv(size, THREADS),)](
            rows, padded, k, count, size, stride, K=K, BLOCK=THREADS
        )
    return rows[:count]


@_on_its_device
def factorise(matrix: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the lower factor of a float64 Gram matrix (k x k) and its inverse, both without the
    directions below the tolerance, as `attittud.kernels.factorise`.
    """
    k = matrix.shape[0]
    factor, inverse = torch.empty(2, k, k, dtype=matrix.dtype, device=matrix.device)
    K = _padded(k)
    _factorise[(1,)](
        matrix.contiguous(), factor, inverse, tolerance**2, k, K=K, num_warps=1 if K == 16 else 4
    )
    return factor, inverse


@_on_its_device
def products(rows: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return rows @ x, rows @ y, ⟨x, x⟩, ⟨y, y⟩ and ⟨x, y⟩, all float64, in one pass over the rows.
    The vectors are read once for every `_UNROLLED` rows.
    """
    totals = []
    for some in rows.split(_UNROLLED):
        k, size = some.shape
        if k <= _FEW:  # many programs at a time
            columns_per_thread = 1
            programs_per_processor = 8
        else:  # as many columns per thread as the registers hold, in one load
            columns_per_thread = 2
            if k <= _FOURFOLD:
                columns_per_thread = 4
            programs_per_processor = 2
        block = columns_per_thread * THREADS
        programs = min(programs_per_processor * processors(rows.device), triton.cdiv(size, block))
        # Each program writes rows @ x (k), rows @ y (k) and three numbers.
        parts = torch.empty(programs, 2 * k + 3, dtype=torch.float64, device=rows.device)
        _products[(programs,)](some, x, y, parts, size, rows.stride(0), K=k, BLOCK=block)
        totals.append(parts.sum(0))
    # With more rows than `_UNROLLED`, the products with the rows are in several totals.
    halves = [total[:-3].chunk(2) for total in totals]
    with_x, with_y = (
        halves[0] if len(halves) == 1 else (torch.cat(some) for some in zip(*halves, strict=True))
    )
    return with_x, with_y, totals[0][-3], totals[0][-2], totals[0][-1]


@_on_its_device
def dot(x: Tensor, y: Tensor) -> Tensor:
    """Return ⟨x, y⟩, products and sums in float64."""
    programs = min(8 * processors(x.device), triton.cdiv(x.shape[0], 4 * THREADS))
    parts = torch.empty(programs, dtype=torch.float64, device=x.device)
    _dot[(programs,)](x, y, parts, x.shape[0], BLOCK=4 * THREADS)
    return parts.sum()


@_on_its_device
def lift_(rows: Tensor, weights: Tensor, x: Tensor, y: Tensor, scales: Tensor) -> None:
    """Overwrite x (D) with scales[0] * x + rowsᵀ weights + scales[1] * y, each product and each sum
    rounded on its own.
    """
    k, size = rows.shape
    K = _padded(k)
    block = _TILE // K
    # fp_fusion off: a fused multiply-add would differ from torch in the last bit.
    _lift[(triton.cdiv(size, block),)](
        rows,
        weights.float(),
        x,
        y,
        scales.float(),
        k,
        size,
        rows.stride(0),
        K=K,
        BLOCK=block,
        enable_fp_fusion=False,
    )


@_on_its_device
def take_(old: Tensor, new: Tensor, finite: Tensor) -> None:
    """Copy `new` into `old` if `finite` (one boolean) is true; otherwise `new` is not even read."""
    block = 8 * THREADS
    _take[(triton.cdiv(new.numel(), block),)](
        old, new, finite.view(torch.uint8), new.numel(), BLOCK=block
    )


@_on_its_device
def add_product_(out: Tensor, weights: Tensor, rows: Tensor) -> None:
    """Add weights (k x m) @ rows (m x D) to `out` (k x D, few rows) in place."""
    m, size = rows.shape
    _add_product[(triton.cdiv(size, 4 * THREADS),)](
        out,
        weights,
        rows,
        m,
        size,
        out.stride(0),
        rows.stride(0),
        *weights.stride(),
        K=len(out),
        BLOCK=4 * THREADS,
    )


# ------------------------------------------------------------------------------------- convolutions

# Weighted sums of per-example gradients with respect to the weight of a 2-d convolution. Windows
# are read in the input itself, and the gradient of one example never leaves the registers. A
# product of matrices would have to copy the windows and write m copies of the weight. Several
# programs may work on one tile of the result. Each writes its sums to memory of its own, one tile
# for each program, and these are added in the end. Operands are in half precision.

# How many rows of weights have sums that fit into registers, how many tiles are loaded at once, and
# how many programs share a processor.
_WINDOW_SUMS = 10
_WINDOW_AHEAD = 3
_WINDOW_PROGRAMS = 2
# The most positions of an entry. The row of position p is computed as (p + 1/2) / across in
# float32, whose relative error of 2^-23 must stay below 1/2 / across. So p < 2^22, divided by a
# factor for the rounding of 1 / across.
_MOST_POSITIONS = 1 << 21
_LEAST = 16  # the smallest shape of tensor cores
# The shape of a tile. The fastest shape (64 x 64) is a sixth faster, but its sums take twice the
# memory.
_OUTPUTS = 64
_COLUMNS = 32
_WINDOW_POSITIONS = 64


@triton.jit
def _window_columns(tile, C, wide, BC: tl.constexpr, PACKED: tl.constexpr):
    """Return row v and column u in the window, and input channel c, of each of a tile's BC columns,
    and which of these columns exist.

    `tile`: the number of the tile among those of the same output channels. C: the number of input
    channels. `wide`: the width of the window. v is the same for the whole tile; without PACKED u is
    too.
    """
    if PACKED:  # with few channels: one row of the window after the other, in the order of memory
        column = tile % tl.cdiv(wide * C, BC) * BC + tl.arange(0, BC)
        v, u, c, real = tile // tl.cdiv(wide * C, BC), column // C, column % C, column < wide * C
    else:
        c = tile % tl.cdiv(C, BC) * BC + tl.arange(0, BC)
        tile //= tl.cdiv(C, BC)
        v, u, real = tile // wide, tl.full((BC,), tile % wide, tl.int32), c < C
    return v, u, c, real


@triton.jit
def _add_windows(
    gradient, x, weights, out, blocks, per, length, example, O, C, H, W, wide, down, across, inverse,
    stride_y, stride_x, dilation_y, dilation_x, pad_y, pad_x, k_stride, m_stride,
    to_split, to_k, to_o, to_c, to_y, to_x,
    K: tl.constexpr, BO: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
    PACKED: tl.constexpr, ALONE: tl.constexpr, ADD: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Add to out[j], for every j < K, the sum over examples i of weights[j, i] * gradient_i^T windows(x_i),
    for one tile of `out` and one of the splits of the sum.

    The gradient of an example with respect to the weight of the convolution is the sum over output
    positions p of (gradient at p, O channels) x (the window of x that p was computed from). So the
    product above is a matrix of O output channels x columns, where a column is a position in the
    window and an input channel. A tile is BO output channels x BC columns. The sum over positions
    runs in blocks of BP positions, and a program takes `per` blocks one after the other, from one
    or several examples.

    Operands; both inputs are channels_last, and an example has one or several entries (images):
        gradient: entries x down x across x O, half precision.
        x: entries x H x W x C, half precision.
        weights: K x examples, float32; element [j, i] is at j * k_stride + i * m_stride.
        out: where the sums go, float32. Element [split, j, o, c, v, u] is at split * to_split + j *
            to_k + o * to_o + c * to_c + v * to_y + u * to_x.

    Sizes:
        blocks: blocks of positions of all examples; per: blocks of one split.
        length: output positions of one example, in all its entries.
        example: elements of x of one example, in all its entries.
        O, C: output and input channels. H, W: height and width of x. wide: width of the window.
        down, across: height and width of the output; inverse: 1 / across.
        stride, dilation, pad (above and to the left): of the convolution, in rows (y) and columns
            (x) of x.

    Switches:
        PACKED: a tile's columns go on over the columns of the window (few input channels).
        ALONE: an example has one entry.
        ADD: add to what is in `out`, because there is one split; otherwise overwrite it.
        AHEAD: how many blocks are loaded at once.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    o = tile % tl.cdiv(O, BO) * BO + tl.arange(0, BO)
    tile //= tl.cdiv(O, BO)
    v, u, c, real = _window_columns(tile, C, wide, BC, PACKED)
    sums = ()  # the weighted sums over examples, for each j
    for _ in tl.static_range(K):
        sums = sums + (tl.zeros((BO, BC), tl.float32),)
    total = tl.zeros((BO, BC), tl.float32)  # the gradient of the current example, so far
    each = tl.cdiv(length, BP)  # blocks of one example
    last = tl.minimum(split * per + per, blocks)
    # One loop over examples and their blocks, so that the next example is loaded while the current
    # one is multiplied.
    for step in tl.range(split * per, last, num_stages=AHEAD):
        i = step // each  # the example
        # The output positions p of this block: row y and column z of the output. `above` counts the
        # rows of x in earlier entries of the example.
        p = (step - i * each) * BP + tl.arange(0, BP)
        if ALONE:  # with one entry per example, its rows need no integer division, which is slow
            y = ((p + 0.5) * inverse).to(tl.int32)
            z, above = p - y * across, 0
        else:
            row = p // across
            y, z, above = row % down, p - row * across, row // down * H
        # From here on, row y (BP) and column z (BP x BC) of x.
        y = y * stride_y + v * dilation_y - pad_y
        z = (z * stride_x - pad_x)[:, None] + (u * dilation_x)[None, :]
        inside = ((p < length) & (y >= 0) & (y < H))[:, None] & (z >= 0) & (z < W)
        at = gradient + tl.cast(i, tl.int64) * length * O + p[None, :] * O + o[:, None]
        a = tl.load(at, mask=(p < length)[None, :] & (o < O)[:, None], other=0.0)
        at = x + tl.cast(i, tl.int64) * example + (((above + y) * W)[:, None] + z) * C + c[None, :]
        b = tl.load(at, mask=inside & real[None, :], other=0.0)
        total = tl.dot(a, b, total)  # a: BO x BP of the gradient; b: BP x BC of the windows
        # The last block of an example, or of this split: the example's part is complete.
        if (step + 1) % each == 0 or step + 1 == last:
            new = ()
            for j in tl.static_range(K):
                new = new + (sums[j] + tl.load(weights + j * k_stride + i * m_stride) * total,)
            sums = new
            total = tl.zeros((BO, BC), tl.float32)
    inside = (o < O)[:, None] & real[None, :]
    at = (
        out
        + split * tl.cast(to_split, tl.int64)
        + v * to_y
        + o[:, None] * to_o
        + (u * to_x + c * to_c)[None, :]
    )
    for j in tl.static_range(K):
        place = at + j * tl.cast(to_k, tl.int64)
        part: tl.tensor = sums[j]
        if ADD:
            part += tl.load(place, mask=inside, other=0.0)
        tl.store(place, part, mask=inside)


@cache
def _multiplies_halves(device: torch.device) -> bool:
    """Whether the tensor cores of a GPU multiply both kinds of half precision."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def serves_windows(out: Tensor, weights: Tensor, gradient: Tensor, x: Tensor) -> bool:
    """Whether `add_windows_` supports these operands: on a GPU, two dimensions, one group (all input
    channels), half precision, few sums, and sizes that 32 bits can count.
    """
    if (
        not gradient.is_cuda
        or gradient.ndim != 4
        or out.shape[2] != x.shape[1]
        or out.shape[0] > _WINDOW_SUMS
    ):
        return False
    types = (
        gradient.dtype == x.dtype
        and x.dtype.itemsize == 2
        and out.dtype == weights.dtype == torch.float32
    )
    entries = gradient.shape[0] // weights.shape[1]
    elements = max(entries * max(gradient[0].numel(), x[0].numel()), out[0].numel())
    # Positions within an example are counted in 32 bits.
    fits = gradient[0, 0].numel() <= _MOST_POSITIONS and elements < 1 << 31
    return types and fits and _multiplies_halves(x.device)


@_on_its_device
def add_windows_(
    out: Tensor,
    weights: Tensor,
    gradient: Tensor,
    x: Tensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
) -> None:
    """Add the weighted sums of the gradients of m examples with respect to a convolution's weight to
    `out` in place: out[j] += Σ_i weights[j, i] * (gradient of example i).

    Args:
        out: k x o x c x window, where o and c are output and input channels.
        weights: k x m.
        gradient: N x o x positions, the gradients at the outputs of the convolution. The N / m
            entries of an example follow each other.
        x: N x c x height x width, the inputs.
        stride: of the convolution, in rows and in columns.
        dilation: likewise.
        pads: the padding above and to the left.
    """
    k, O, C, high, wide = out.shape
    m = weights.shape[1]
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    entries = gradient.shape[0] // m
    _, _, down, across = gradient.shape
    length = entries * down * across
    packed = C < _LEAST
    columns = C
    rows = high * wide
    if packed:
        columns = wide * C
        rows = high
    BO = min(_OUTPUTS, max(_LEAST, triton.next_power_of_2(O)))
    BC = min(_COLUMNS, max(_LEAST, triton.next_power_of_2(columns)))
    tiles = triton.cdiv(O, BO) * triton.cdiv(columns, BC) * rows
    # As many programs as can run at a time, each with its own sums. Sums of programs that share a
    # tile are added up below.
    blocks = m * triton.cdiv(length, _WINDOW_POSITIONS)
    per = triton.cdiv(blocks, max(1, _WINDOW_PROGRAMS * processors(out.device) // tiles))
    splits = triton.cdiv(blocks, per)
    if splits == 1:
        target = out
        strides = (0, *out.stride())
    else:
        target = torch.empty(splits, k, O, high, wide, C, dtype=out.dtype, device=out.device)
        strides = target.permute(0, 1, 2, 5, 3, 4).stride()
    _add_windows[(tiles, splits)](
        gradient, x, weights, target, blocks, per, length, x[0].numel() * entries, O, C, *x.shape[2:], wide, down, across,
        1 / across, *stride, *dilation, *pads, *weights.stride(), *strides,
        K=k, BO=BO, BC=BC, BP=_WINDOW_POSITIONS, PACKED=packed, ALONE=entries == 1, ADD=splits == 1,
        AHEAD=_WINDOW_AHEAD, num_warps=4,
    )  # fmt: skip
    if splits > 1:
        out.add_(target.sum(0).permute(0, 1, 4, 2, 3))
