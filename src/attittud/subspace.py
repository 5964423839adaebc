"""The basis V in use between two refreshes: where it is stored and how gradients meet it."""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.basis.base import Basis
from attittud.linalg import chunk_size
from attittud.parameters import Layout


class Subspace:
    """V (k x D) at one address for as long as its layout lasts, so that a captured CUDA graph may refer to it."""

    def __init__(self, basis: Basis, layout: Layout, rank: int, dtype: torch.dtype | None) -> None:
        self.layout = layout
        self.stored = basis.stored
        rows = rank if self.stored else 0
        # All zero until a refresh succeeds: then every gradient is neutral.
        self.rows = torch.zeros(rows, layout.size, dtype=dtype or layout.dtype, device=layout.device)
        self.active = torch.zeros(rows, dtype=torch.bool, device=layout.device)

    def replace(self, rows: Tensor, finite: Tensor) -> None:
        """Take new rows (at most as many as V has) where they are finite, else keep the old ones."""
        for j, old in enumerate(self.rows):
            if j < rows.shape[0]:
                old.copy_(torch.where(finite, rows[j], old))
            else:
                old.copy_(torch.where(finite, 0.0, old))
        self.active.copy_(torch.linalg.vector_norm(self.rows, dim=1) > 0.5)

    def load(self, rows: Tensor) -> None:
        """Take saved rows as they are."""
        if rows.shape != self.rows.shape:
            raise ValueError(
                f"the saved basis has shape {tuple(rows.shape)}, this model needs {tuple(self.rows.shape)}"
            )
        self.replace(rows.to(self.rows.device), torch.ones((), dtype=torch.bool, device=self.rows.device))

    def project(self, gradient: Tensor) -> Tensor:
        """V g as a float64 k-vector (the canonical basis: g itself)."""
        if not self.stored:
            return gradient
        if self.rows.dtype == gradient.dtype:
            return self.rows.mv(gradient).double()
        total = torch.zeros(self.rows.shape[0], dtype=torch.float64, device=gradient.device)
        size = chunk_size(self.rows)
        for chunk, piece in zip(self.rows.split(size, dim=1), gradient.split(size), strict=True):
            total += chunk.to(piece.dtype).mv(piece)
        return total

    def add_(self, out: Tensor, weights: Tensor) -> None:
        """out += Vᵀ weights."""
        if not self.stored:
            out.add_(weights)
        elif self.rows.dtype == out.dtype:
            out.addmv_(self.rows.T, weights.to(out.dtype))
        else:
            size = chunk_size(self.rows)
            for chunk, piece in zip(self.rows.split(size, dim=1), out.split(size), strict=True):
                piece.addmv_(chunk.to(piece.dtype).T, weights.to(piece.dtype))

    @property
    def effective_rank(self) -> Tensor:
        """Directions that are not zeroed."""
        return self.active.sum() if self.stored else torch.tensor(self.layout.size, device=self.layout.device)
