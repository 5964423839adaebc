"""What single examples add to the gradients of a frozen BatchNorm, in Triton: gradient and input are read once.

Nothing of the size of an activation is written, and sums are float32, without atomics.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from attittud.kernels.gram import processors

_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_CHANNELS, _POSITIONS = 64, 32  # of a tile
_PROGRAMS = 4  # that share a processor


@triton.jit
def _channel_sums(
    gradient, x, mean, var, out, eps, m, C, P, each, per, g_n, g_c, g_p, x_n, x_c, x_p, BC: tl.constexpr, BP: tl.constexpr
):  # fmt: skip
    """Some channels of one example, over some of the positions of its entries."""
    i, split = tl.program_id(0), tl.program_id(2)
    c = (tl.program_id(1) * BC + tl.arange(0, BC)).to(tl.int64)
    middle = tl.load(mean + c, mask=c < C, other=0.0)
    scale = 1 / tl.sqrt(tl.load(var + c, mask=c < C, other=1.0) + eps)
    weighted, plain = tl.zeros((BP, BC), tl.float32), tl.zeros((BP, BC), tl.float32)
    for n in range(i * each, i * each + each):
        at = tl.cast(n, tl.int64)
        for start in range(split * per, tl.minimum(P, split * per + per), BP):
            p = (start + tl.arange(0, BP)).to(tl.int64)[:, None]
            inside = (p < P) & (c < C)[None, :]
            g = tl.load(gradient + at * g_n + p * g_p + c[None, :] * g_c, mask=inside, other=0.0).to(tl.float32)
            z = tl.load(x + at * x_n + p * x_p + c[None, :] * x_c, mask=inside, other=0.0).to(tl.float32)
            weighted += g * ((z - middle[None, :]) * scale[None, :])
            plain += g
    place = out + (split * 2 * m + i) * C + c
    tl.store(place, tl.sum(weighted, axis=0), mask=c < C)
    tl.store(place + m * C, tl.sum(plain, axis=0), mask=c < C)


def serves_channels(gradient: Tensor, x: Tensor) -> bool:
    """Whether `channel_sums` takes these: images, or sequences with their channels in the second dimension.

    Without positions there is nothing to sum.
    """
    types = gradient.dtype in _TYPES and x.dtype in _TYPES
    return gradient.is_cuda and types and gradient.ndim > 2 and x.numel() > 0


def channel_sums(
    gradient: Tensor, x: Tensor, mean: Tensor, var: Tensor, eps: float, examples: int
) -> tuple[Tensor, Tensor]:
    """Sums of gradient * (x - mean) / √(var + eps) and of the gradient itself, for each example and channel: m x C.

    gradient and x: N x C x positions, where the N / m entries of an example follow each other.
    """
    gradient, x = gradient.flatten(2), x.flatten(2)
    mean, var = mean.float().contiguous(), var.float().contiguous()
    N, C, P = gradient.shape
    BC = min(_CHANNELS, triton.next_power_of_2(C))
    columns = triton.cdiv(C, BC)
    blocks = triton.cdiv(P, _POSITIONS)
    # As many programs as run at a time.
    per = triton.cdiv(blocks, max(1, _PROGRAMS * processors(x.device) // (examples * columns)))
    splits = triton.cdiv(blocks, per)
    out = torch.empty(splits, 2, examples, C, dtype=torch.float32, device=x.device)
    _channel_sums[(examples, columns, splits)](
        gradient, x, mean, var, out, eps, examples, C, P, N // examples, per * _POSITIONS,
        *gradient.stride(), *x.stride(), BC=BC, BP=_POSITIONS,
    )  # fmt: skip
    weighted, plain = out[0] if splits == 1 else out.sum(0)
    return weighted, plain
