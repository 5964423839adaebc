"""Gaussian numbers that depend only on (seed, refresh index, row, column).

Every worker and micro-batch can take its own columns of one global matrix, and a resumed run gets the same ones. A
counter-based generator (splitmix64 and Box-Muller in tensor operations) neither reads nor disturbs the user's random
state, runs on any device, and stays right inside a CUDA graph, where the refresh index is a tensor on the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's is arithmetic for signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _splitmix64(x: Tensor) -> Tensor:
    x = x + _GAMMA
    x = (x ^ _shift_right(x, 30)) * _MIX1
    x = (x ^ _shift_right(x, 27)) * _MIX2
    return x ^ _shift_right(x, 31)


def _uniform(bits: Tensor) -> Tensor:
    """In (0, 1]: never 0, whose logarithm is infinite."""
    return (_shift_right(bits, 11) + 1).double() * 2.0**-53


def gaussian(
    seed: int,
    refresh_index: int | Tensor,
    *,
    rows: int,
    first: int | Tensor = 0,
    columns: int,
    first_row: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Rows `first_row...` and columns `first...` of the Gaussian matrix of one refresh, `rows` x `columns`."""
    index = torch.as_tensor(refresh_index, dtype=torch.int64, device=device)
    key = _splitmix64(_splitmix64(torch.full((), seed, dtype=torch.int64, device=device)) ^ index)
    row = torch.arange(first_row, first_row + rows, dtype=torch.int64, device=device)[:, None]
    column = torch.arange(columns, dtype=torch.int64, device=device)[None, :] + first
    counter = _splitmix64(_splitmix64(key ^ row) ^ column)
    radius = (-2.0 * _uniform(_splitmix64(counter)).log()).sqrt()
    angle = 2.0 * math.pi * _uniform(_splitmix64(counter ^ _GAMMA))
    return (radius * angle.cos()).to(dtype)
