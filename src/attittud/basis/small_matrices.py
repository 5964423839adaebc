"""Decompositions of small float64 matrices that do not wait for the device.

torch's own read an error code back from a GPU, so that nothing with them can be captured in a CUDA graph. On a CPU, where
there is nothing to wait for, they are used as they are.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

# Of Jacobi, which converges quadratically: after the QR below no matrix of 64 rows that was tried needed more than 8, those
# with singular values over 14 decades among them.
SWEEPS = 10


def singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values in descending order, and the right singular vectors as rows; those of zeros are no unit vectors."""
    if not matrix.is_cuda:
        _, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
        return sizes, right
    return jacobi(matrix)


def qr(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Thin QR."""
    if not matrix.is_cuda:
        q, r = torch.linalg.qr(matrix)
        return q, r
    return householder(matrix)


def jacobi(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`singular`, by rotations of pairs of rows until all are orthogonal: UᵀA = SVᵀ.

    In every round all rows are paired, so a round is a handful of batched operations, however many rows there are.
    """
    # Longest columns first, a QR leaves rows that are nearly orthogonal where singular values are far apart (Drmac, Veselic).
    order = torch.linalg.vector_norm(matrix, dim=0).sort(descending=True, stable=True).indices
    triangle = householder(matrix[:, order])[1]
    rows, columns = triangle.shape
    count = rows + rows % 2
    pairs = matrix.new_zeros(count, columns)
    pairs[:rows, order] = triangle
    meet = _next_round(count, matrix.device)
    for _ in range(SWEEPS * max(1, count - 1)):
        both = pairs.view(count // 2, 2, -1)
        inner = both @ both.mT
        # The angle of at most 45 degrees that makes the two orthogonal; a larger one could undo what others did.
        gap = inner[:, 0, 0] - inner[:, 1, 1]
        angle = torch.atan2(2 * inner[:, 0, 1] * torch.copysign(torch.ones_like(gap), gap), gap.abs()) / 2
        cosine, sine = angle.cos(), angle.sin()
        rotation = torch.stack([cosine, sine, -sine, cosine], 1).view(-1, 2, 2)
        pairs = (rotation @ both).view(count, -1)[meet]
    sizes, best = torch.linalg.vector_norm(pairs, dim=1).sort(descending=True, stable=True)
    sizes, right = sizes[:rows], pairs[best[:rows]]
    return sizes, right / torch.where(sizes > 0, sizes, 1.0)[:, None]


@cache
def _next_round(count: int, device: torch.device) -> Tensor:
    """Where each row comes from in the next round of a tournament, in which neighbours meet: the first one stays."""
    players = list(range(count))
    upper, lower = players[::2], players[1::2]
    # The lower row moves to the left and the upper one to the right, round the corner.
    upper, lower = [upper[0], lower[0], *upper[1:-1]], [*lower[1:], upper[-1]]
    if count == 2:
        upper, lower = [0], [1]
    return torch.tensor([row for pair in zip(upper, lower, strict=True) for row in pair], device=device)


def householder(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`qr`, by reflections: a column after the other."""
    rows, columns = matrix.shape
    count = min(rows, columns)
    rest, normals = matrix.clone(), list[Tensor]()
    for column in range(count):
        normal = rest[:, column].clone()
        normal[:column] = 0
        length = torch.linalg.vector_norm(normal)
        normal[column] += torch.copysign(length, normal[column])
        square = normal @ normal
        normal = normal * torch.where(square > 0, 2 / square, 0.0).sqrt()
        rest = rest - torch.outer(normal, normal @ rest)
        normals.append(normal)
    q = torch.eye(rows, count, dtype=matrix.dtype, device=matrix.device)
    for normal in reversed(normals):
        q = q - torch.outer(normal, normal @ q)
    return q, rest[:count].triu()
