"""The basis V in use between two refreshes: where it is stored and how gradients meet it."""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.basis.base import Basis
from attittud.distributed import Workers
from attittud.linalg import chunk_size, mv
from attittud.parameters import Layout


class Subspace:
    """V (k x D), once stored at one address for as long as its layout lasts: a captured CUDA graph may refer to it."""

    def __init__(self, basis: Basis, layout: Layout, rank: int, dtype: torch.dtype | None, workers: Workers) -> None:
        self.layout = layout
        self.workers = workers
        self.rank = rank
        self.dtype = dtype or layout.dtype
        self.stored = basis.stored
        self.rows: Tensor | None = None
        self.active = torch.zeros(rank if self.stored else 0, dtype=torch.bool, device=layout.device)

    def replace(self, rows: Tensor, finite: Tensor) -> None:
        """Take new rows (at most `rank`) where they are finite, else keep the old ones.

        Before any success V is zero, and every gradient neutral.
        """
        if not self.stored:
            return
        if self.rows is None and rows.shape[0] == self.rank and rows.dtype == self.dtype:
            self.rows = rows  # the first time without a copy
            for row in rows:
                row.copy_(torch.where(finite, row, 0.0))
        else:
            if self.rows is None:
                self.rows = torch.zeros(self.rank, self.layout.size, dtype=self.dtype, device=self.layout.device)
            for j, old in enumerate(self.rows):
                old.copy_(torch.where(finite, rows[j] if j < rows.shape[0] else 0.0, old))
        squares = torch.linalg.vector_norm(self.rows, dim=1, dtype=torch.float64).square()
        self.active.copy_(self.workers.sum_columns(squares) > 0.25)

    def load(self, rows: Tensor | None) -> None:
        """Take saved rows as they are."""
        if rows is None:
            return
        expected = (self.rank, self.layout.size)
        if tuple(rows.shape) != expected:
            raise ValueError(f"the saved basis has shape {tuple(rows.shape)}, this model needs {expected}")
        rows = rows.to(self.layout.device, self.dtype, copy=True)
        self.replace(rows, torch.ones((), dtype=torch.bool, device=rows.device))

    def project(self, gradient: Tensor) -> Tensor:
        """V g as a float64 k-vector, from the examples and the columns of this worker."""
        assert self.rows is not None
        if self.rows.dtype == gradient.dtype:
            return mv(self.rows, gradient).double()
        total = torch.zeros(self.rank, dtype=torch.float64, device=gradient.device)
        size = chunk_size(self.rows)
        for chunk, piece in zip(self.rows.split(size, dim=1), gradient.split(size), strict=True):
            total += mv(chunk.to(piece.dtype), piece)
        return total

    def add_(self, out: Tensor, weights: Tensor) -> None:
        """out += Vᵀ weights."""
        assert self.rows is not None
        weights = weights.to(out.dtype)
        if self.rows.dtype == out.dtype:
            out.addmv_(self.rows.T, weights)
            return
        size = chunk_size(self.rows)
        for chunk, piece in zip(self.rows.split(size, dim=1), out.split(size), strict=True):
            piece.addmv_(chunk.to(piece.dtype).T, weights)

    @property
    def effective_rank(self) -> Tensor:
        """Directions that are not zeroed."""
        return self.active.sum() if self.stored else torch.full((), self.layout.size, device=self.layout.device)
