"""Random choices of rows. Each has its own purpose and random numbers, so that none changes with another."""

from __future__ import annotations

from zlib import crc32

import torch
from torch import Tensor


def generator(purpose: str, seed: int) -> torch.Generator:
    """Random numbers of one purpose."""
    return torch.Generator().manual_seed(crc32(f"{purpose} {seed}".encode()))


def shuffled(rows: Tensor, purpose: str, seed: int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator(purpose, seed))]


def cut(rows: Tensor, labels: Tensor, sizes: tuple[int, ...], seed: int) -> list[Tensor]:
    """Parts of the given sizes with equal counts of each class, and the rest."""
    rows = shuffled(rows, "split", seed)
    classes = labels[rows].unique().tolist()
    by_class = [rows[labels[rows] == c] for c in classes]
    parts, start = [], 0
    for size in sizes:
        end = start + -(-size // len(classes))
        parts.append(shuffled(torch.cat([own[start:end] for own in by_class]), "part", seed)[:size])
        start = end
    return [*parts, torch.cat([own[start:] for own in by_class])]
