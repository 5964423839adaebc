"""Decompositions of small matrices. No operation waits for the device.

torch's own decompositions read an error code back from a GPU, so they cannot be captured in a CUDA
graph. On a CPU, where there is nothing to wait for, they are used as they are.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

SWEEPS = 10
"""Sweeps of the Jacobi method, which converges quadratically. After the QR below, no tested matrix
of 64 rows needed more than 8 sweeps, even with singular values over 14 decades."""


def singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values in descending order, and the right singular vectors as rows. Vectors of zero
    values lack unit norm.
    """
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
    """`singular` on a GPU: rotates pairs of rows until all rows are orthogonal, UᵀA = SVᵀ.

    The norms of the rows are then the singular values. Every round pairs all rows, so a round takes
    a handful of batched operations, however many rows there are.
    """
    # A QR with the longest columns first leaves nearly orthogonal rows if singular values are far
    # apart (Drmac, Veselic).
    order = torch.linalg.vector_norm(matrix, dim=0).sort(descending=True, stable=True).indices
    triangle = householder(matrix[:, order])[1]
    rows, columns = triangle.shape
    count = rows + rows % 2  # an odd number of rows gets a row of zeros
    pairs = matrix.new_zeros(count, columns)
    pairs[:rows, order] = triangle
    moved = _next_round(count, matrix.device)
    for _ in range(SWEEPS * max(1, count - 1)):
        both = pairs.view(count // 2, 2, -1)
        inner = both @ both.mT
        # The angle of at most 45 degrees that makes the two rows x and y orthogonal:
        # tan 2φ = 2⟨x, y⟩ / (‖x‖² - ‖y‖²). A larger angle could undo earlier rotations.
        gap = inner[:, 0, 0] - inner[:, 1, 1]
        angle = (
            torch.atan2(2 * inner[:, 0, 1] * torch.copysign(torch.ones_like(gap), gap), gap.abs())
            / 2
        )
        cosine = angle.cos()
        sine = angle.sin()
        rotation = torch.stack([cosine, sine, -sine, cosine], 1).view(-1, 2, 2)
        pairs = (rotation @ both).view(count, -1)[moved]
    sizes, best = torch.linalg.vector_norm(pairs, dim=1).sort(descending=True, stable=True)
    sizes = sizes[:rows]
    right = pairs[best[:rows]]
    return sizes, right / torch.where(sizes > 0, sizes, 1.0)[:, None]


@cache
def _next_round(count: int, device: torch.device) -> Tensor:
    """The position from which each row comes in the next round, as in a round-robin tournament: the
    first row stays.
    """
    players = list(range(count))
    if count > 2:
        upper = players[::2]
        lower = players[1::2]
        # The lower rows move to the left, the upper rows to the right, and both continue around
        # the corner.
        players[::2] = [upper[0], lower[0], *upper[1:-1]]
        players[1::2] = [*lower[1:], upper[-1]]
    return torch.tensor(players, device=device)


def householder(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """`qr` on a GPU, by reflections I - n nᵀ with ‖n‖² = 2, one column after the other.

    Each reflection makes the entries of its column below the diagonal zero.
    """
    rows, columns = matrix.shape
    count = min(rows, columns)
    rest = matrix.clone()
    normals: list[Tensor] = []
    for column in range(count):
        normal = rest[:, column].clone()
        normal[:column] = 0
        length = torch.linalg.vector_norm(normal)
        normal[column] += torch.copysign(length, normal[column])  # the sign avoids cancellation
        square = normal @ normal
        normal = normal * torch.where(square > 0, 2 / square, 0.0).sqrt()
        rest = rest - torch.outer(normal, normal @ rest)
        normals.append(normal)
    q = torch.eye(rows, count, dtype=matrix.dtype, device=matrix.device)
    for normal in reversed(normals):
        q = q - torch.outer(normal, normal @ q)
    return q, rest[:count].triu()
