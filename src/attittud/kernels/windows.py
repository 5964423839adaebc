"""Weighted sums of the gradients that single examples have for the weight of a 2-d convolution, in Triton.

Windows are read where they lie in the input, and the gradient of one example never leaves the registers: what a product
of matrices would need laid out and written, m times the weight and more, does not exist. Programs that share a tile write
their sums beside each other: many times the weight where that is small, never more than a tile for each. Half-precision
operands, sums in float32 and without atomics, so that a result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from attittud.kernels.gram import processors

_MOST_SUMS = 10  # rows of weights whose sums fit into registers
# Of an entry. The row of position p is that of (p + 1/2) / across in float32, whose error, 2^-23 of it, must not reach
# 1/2 / across: p < 2^22, less a factor for the rounding of 1 / across.
_MOST_POSITIONS = 1 << 21
_LEAST = 16  # where tensor-core shapes start

# A sixth slower than the fastest that was tried on an H200 (64 x 64), whose sums take twice the memory.
_OUTPUTS, _COLUMNS, _POSITIONS = 64, 32, 64  # of a tile
_PROGRAMS = 2  # that share a processor
_AHEAD = 3  # tiles on their way from memory


@triton.jit
def _add_windows(
    gradient, x, weights, out, blocks, per, length, example, O, C, H, W, wide, down, across, inverse,
    stride_y, stride_x, dilation_y, dilation_x, pad_y, pad_x, k_stride, m_stride,
    to_split, to_k, to_o, to_c, to_y, to_x,
    K: tl.constexpr, BO: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
    PACKED: tl.constexpr, ALONE: tl.constexpr, ADD: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Output channels x columns (a place of the window and its input channels), from `per` blocks of positions.

    length: positions of an example, in all its entries; example: elements of x that it has; v, u: the place in the window;
    real: columns that exist; above: rows of x in the entries before.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    o = tile % tl.cdiv(O, BO) * BO + tl.arange(0, BO)
    tile //= tl.cdiv(O, BO)
    if PACKED:  # few channels: a row of the window side by side, as it lies in memory
        column = tile % tl.cdiv(wide * C, BC) * BC + tl.arange(0, BC)
        v, u, c, real = tile // tl.cdiv(wide * C, BC), column // C, column % C, column < wide * C
    else:
        c = tile % tl.cdiv(C, BC) * BC + tl.arange(0, BC)
        tile //= tl.cdiv(C, BC)
        v, u, real = tile // wide, tl.full((BC,), tile % wide, tl.int32), c < C
    sums = ()
    for _ in tl.static_range(K):
        sums = sums + (tl.zeros((BO, BC), tl.float32),)
    total = tl.zeros((BO, BC), tl.float32)
    each = tl.cdiv(length, BP)
    last = tl.minimum(split * per + per, blocks)
    # One loop over examples and their blocks, so that the next example is on its way while this one is multiplied.
    for step in tl.range(split * per, last, num_stages=AHEAD):
        i = step // each
        p = (step - i * each) * BP + tl.arange(0, BP)
        if ALONE:  # one entry to an example: its rows without a division of integers, which is slow
            y = ((p + 0.5) * inverse).to(tl.int32)
            z, above = p - y * across, 0
        else:
            row = p // across
            y, z, above = row % down, p - row * across, row // down * H
        y = y * stride_y + v * dilation_y - pad_y
        z = (z * stride_x - pad_x)[:, None] + (u * dilation_x)[None, :]
        inside = ((p < length) & (y >= 0) & (y < H))[:, None] & (z >= 0) & (z < W)
        a = tl.load(
            gradient + tl.cast(i, tl.int64) * length * O + p[None, :] * O + o[:, None],
            mask=(p < length)[None, :] & (o < O)[:, None],
            other=0.0,
        )
        b = tl.load(
            x + tl.cast(i, tl.int64) * example + (((above + y) * W)[:, None] + z) * C + c[None, :],
            mask=inside & real[None, :],
            other=0.0,
        )
        total = tl.dot(a, b, total)
        if (step + 1) % each == 0 or step + 1 == last:
            new = ()
            for j in tl.static_range(K):
                new = new + (sums[j] + tl.load(weights + j * k_stride + i * m_stride) * total,)
            sums = new
            total = tl.zeros((BO, BC), tl.float32)
    inside = (o < O)[:, None] & real[None, :]
    at = out + split * tl.cast(to_split, tl.int64) + v * to_y + o[:, None] * to_o + (u * to_x + c * to_c)[None, :]
    for j in tl.static_range(K):
        place = at + j * tl.cast(to_k, tl.int64)
        found: tl.tensor = sums[j]
        if ADD:
            found += tl.load(place, mask=inside, other=0.0)
        tl.store(place, found, mask=inside)


@cache
def _multiplies_halves(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def serves_windows(out: Tensor, weights: Tensor, gradient: Tensor, x: Tensor) -> bool:
    """Whether `add_windows_` takes these: two dimensions, one group (all input channels), half precision, few sums."""
    if not gradient.is_cuda or gradient.ndim != 4 or out.shape[2] != x.shape[1] or out.shape[0] > _MOST_SUMS:
        return False
    types = gradient.dtype == x.dtype and x.dtype.itemsize == 2 and out.dtype == weights.dtype == torch.float32
    entries = gradient.shape[0] // weights.shape[1]
    elements = max(entries * max(gradient[0].numel(), x[0].numel()), out[0].numel())
    # 32 bits count within an example.
    fits = gradient[0, 0].numel() <= _MOST_POSITIONS and elements < 1 << 31
    return types and fits and _multiplies_halves(x.device)


def add_windows_(
    out: Tensor,
    weights: Tensor,
    gradient: Tensor,
    x: Tensor,
    stride: Sequence[int],
    dilation: Sequence[int],
    pads: Sequence[int],
) -> None:
    """out (k x o x c x window) += weights (k x m) times the gradients of the m examples.

    gradient: N x o x positions, x: N x c x space, where the N / m entries of an example follow each other; `pads` above
    and to the left.
    """
    (k, O, C, high, wide), m = out.shape, weights.shape[1]
    gradient, x = (t.contiguous(memory_format=torch.channels_last) for t in (gradient, x))
    entries, (_, _, down, across) = gradient.shape[0] // m, gradient.shape
    length = entries * down * across
    packed = C < _LEAST
    columns, rows = (wide * C, high) if packed else (C, high * wide)
    BO, BC = (min(side, max(_LEAST, triton.next_power_of_2(n))) for side, n in ((_OUTPUTS, O), (_COLUMNS, columns)))
    tiles = triton.cdiv(O, BO) * triton.cdiv(columns, BC) * rows
    # As many programs as run at a time, each with its own sums: added up below where several have a tile in common.
    blocks = m * triton.cdiv(length, _POSITIONS)
    per = triton.cdiv(blocks, max(1, _PROGRAMS * processors(out.device) // tiles))
    splits = triton.cdiv(blocks, per)
    if splits == 1:
        target, strides = out, (0, *out.stride())
    else:
        target = torch.empty(splits, k, O, high, wide, C, dtype=out.dtype, device=out.device)
        strides = tuple(target.stride(dim) for dim in (0, 1, 2, 5, 3, 4))
    _add_windows[(tiles, splits)](
        gradient, x, weights, target, blocks, per, length, x[0].numel() * entries, O, C, *x.shape[2:], wide, down, across,
        1 / across, *stride, *dilation, *pads, *weights.stride(), *strides,
        K=k, BO=BO, BC=BC, BP=_POSITIONS, PACKED=packed, ALONE=entries == 1, ADD=splits == 1, AHEAD=_AHEAD, num_warps=4,
    )  # fmt: skip
    if splits > 1:
        out.add_(target.sum(0).permute(0, 1, 4, 2, 3))
