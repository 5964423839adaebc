"""Which columns of long rows belong together: all columns, or the columns of each parameter (a segment).

A handful of operations serves all segments, however many there are. Segments are cut into blocks of columns. Products are
summed up over each block, then over the blocks of each segment: in float64, and always in the same order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from attittud._torch import segment_sums
from attittud.kernels import add_product_, chunk_size, gram, transform_

BLOCK = 4096
"""The largest number of columns in a block, which one group of threads sums up on a GPU."""


class Whole:
    """All columns together: one k x k matrix for k rows."""

    def gram(self, rows: Tensor) -> Tensor:
        """rows @ rowsᵀ, float64."""
        return gram(rows)

    def squares(self, rows: Tensor) -> Tensor:
        """The squared norms of the rows, float64."""
        return gram(rows).diagonal().clone()

    def scale_(self, rows: Tensor, factors: Tensor) -> None:
        """Multiply each row by a factor."""
        rows.mul_(factors.to(rows.dtype)[:, None])

    def transform_(self, rows: Tensor, matrix: Tensor) -> None:
        """The rows become `matrix @ rows`; the matrix is lower triangular."""
        transform_(rows, matrix, lower=True)

    def add_product_(self, out: Tensor, weights: Tensor, rows: Tensor) -> None:
        """out (k x D) += weights (k x m) @ rows (m x D)."""
        add_product_(out, weights, rows)


WHOLE = Whole()


class Chunk(NamedTuple):
    """Some blocks, as many as are worked on at once."""

    columns: slice
    lengths: Tensor  # columns of each block
    owners: Tensor  # the number of the segment that each block is a part of

    def blocks(self) -> Tensor:
        """For each column, the number of its block."""
        return torch.repeat_interleave(self.lengths, output_size=self.columns.stop - self.columns.start)

    def spread(self, values: Tensor, blocks: Tensor) -> Tensor:
        """For each column, the value of its segment."""
        return values.index_select(0, self.owners).index_select(0, blocks)


class Segments(Whole):
    """Each parameter by itself: T matrices (T x k x k) for T parameters, and T numbers where one row has one."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        counts = [-(-size // BLOCK) for size in sizes]
        lengths = [min(BLOCK, size - start) for size in sizes for start in range(0, size, BLOCK)]
        self._counts = torch.tensor(counts, dtype=torch.int64, device=device)
        self._chunks = list(_chunks(counts, lengths, device, chunk_size(self._counts)))

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """⟨x, y⟩ over each segment: T numbers, float64."""
        if not self._chunks:  # a worker may hold no part of any parameter
            return torch.zeros(self._counts.shape, dtype=torch.float64, device=x.device)
        found = []
        for columns, lengths, _ in self._chunks:
            products = x[columns].to(torch.float64, copy=True).mul_(y[columns])
            found.append(segment_sums(products, lengths))
        return segment_sums(torch.cat(found), self._counts)

    def project(self, rows: Tensor, x: Tensor) -> Tensor:
        """rows @ x over each segment: k x T."""
        return torch.stack([self.dot(row, x) for row in rows])

    def squares(self, rows: Tensor) -> Tensor:
        """The squared norms over each segment: k x T."""
        return torch.stack([self.dot(row, row) for row in rows])

    def gram(self, rows: Tensor) -> Tensor:
        lower = [[self.dot(row, other) for other in rows[: i + 1]] for i, row in enumerate(rows)]
        k = len(lower)
        entries = [lower[max(i, j)][min(i, j)] for i in range(k) for j in range(k)]
        return torch.stack(entries, dim=1).view(-1, k, k)

    def scale_(self, rows: Tensor, factors: Tensor) -> None:
        """Multiply each row by a factor for each segment, k x T."""
        factors = factors.to(rows.dtype)
        for chunk in self._chunks:
            blocks = chunk.blocks()
            for row, own in zip(rows, factors, strict=True):
                row[chunk.columns].mul_(chunk.spread(own, blocks))

    def transform_(self, rows: Tensor, matrix: Tensor) -> None:
        for chunk in self._chunks:
            blocks, parts = chunk.blocks(), rows[:, chunk.columns]
            # From the last row to the first, because a row needs the rows before it.
            for i in reversed(range(rows.shape[0])):
                total = chunk.spread(matrix[:, i, i], blocks).mul_(parts[i])
                for j in range(i):
                    total.addcmul_(chunk.spread(matrix[:, i, j], blocks), parts[j])
                parts[i].copy_(total)

    def add_rows_(self, x: Tensor, rows: Tensor, weights: Tensor) -> None:
        """x += rowsᵀ weights, with weights k x T."""
        weights = weights.to(x.dtype)
        for chunk in self._chunks:
            blocks = chunk.blocks()
            for row, own in zip(rows, weights, strict=True):
                x[chunk.columns].addcmul_(row[chunk.columns], chunk.spread(own, blocks))

    def add_product_(self, out: Tensor, weights: Tensor, rows: Tensor) -> None:
        for row, own in zip(out, weights.unbind(1), strict=True):
            self.add_rows_(row, rows, own.T)


def _chunks(counts: list[int], lengths: list[int], device: torch.device, most: int) -> Iterator[Chunk]:
    """Yield the blocks in order, in groups with at most this many columns."""
    owners = [number for number, count in enumerate(counts) for _ in range(count)]
    ends = list(accumulate(lengths))
    first = start = 0
    while first < len(ends):
        last = bisect_right(ends, start + most)
        tables = (torch.tensor(x[first:last], dtype=torch.int64, device=device) for x in (lengths, owners))
        yield Chunk(slice(start, ends[last - 1]), *tables)
        first, start = last, ends[last - 1]
