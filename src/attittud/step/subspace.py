"""The basis V in use between two refreshes: where it is stored and how gradients meet it."""

from __future__ import annotations

import torch
from torch import Tensor

from attittud.autograd.layout import Layout
from attittud.basis.base import Basis
from attittud.kernels.products import Products, add_rows_, lift_, products, project, take_
from attittud.workers.one import Workers


class Subspace:
    """V (k x D), once stored at one address for as long as its layout lasts: a captured CUDA graph may refer to it."""

    def __init__(self, basis: Basis, layout: Layout, rank: int, dtype: torch.dtype | None, workers: Workers) -> None:
        self.layout = layout
        self.workers = workers
        self.rank = rank
        self.dtype = dtype or layout.dtype
        self.stored = basis.stored
        self.projects = basis.stored
        """Gradients meet it as k-vectors; else every coordinate is a direction."""
        self.finite = torch.ones((), dtype=torch.bool, device=layout.device)
        """Whether the latest refresh succeeded."""
        self._rows: Tensor | None = None
        self.active = torch.zeros(rank if self.stored else 0, dtype=torch.bool, device=layout.device)

    @property
    def rows(self) -> Tensor:
        """V. A product with it is over the examples and the columns of this worker."""
        assert self._rows is not None, "the basis is not fixed yet"
        return self._rows

    def replace(self, rows: Tensor, finite: Tensor) -> None:
        """Take new rows (at most `rank`) where they are finite, else keep the old ones.

        Before any success V is zero, and every gradient neutral.
        """
        self.finite = finite
        if not self.stored:
            return
        if self._rows is None and rows.shape[0] == self.rank and rows.dtype == self.dtype:
            self._rows = rows  # the first time without a copy
            rows.masked_fill_(~finite, 0.0)
        else:
            if self._rows is None:
                self._rows = torch.zeros(self.rank, self.layout.size, dtype=self.dtype, device=self.layout.device)
            count = rows.shape[0]
            take_(self.rows[:count], rows, finite)
            self.rows[count:].masked_fill_(finite, 0.0)
        # Not in float64, for which torch would copy all of V: rows are of length 1 or 0.
        wide = torch.promote_types(self.rows.dtype, torch.float32)
        squares = torch.linalg.vector_norm(self.rows, dim=1, dtype=wide).square()
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

    def project(self, x: Tensor) -> Tensor:
        """V x, float64."""
        return project(self.rows, x)

    def products(self, x: Tensor, y: Tensor | None) -> Products:
        """V x, V y and the inner products of x and y; None is the primary gradient, where V knows it without a vector."""
        assert y is not None
        return products(self.rows, x, y)

    def add_(self, x: Tensor, weights: Tensor) -> None:
        """x += Vᵀ weights."""
        add_rows_(x, self.rows, weights)

    def lift_(self, weights: Tensor, x: Tensor, y: Tensor | None, x_factor: float | Tensor, y_factor: Tensor) -> Tensor:
        """x becomes x_factor * x + Vᵀ weights + y_factor * y; y may be overwritten."""
        assert y is not None
        if self.stored:
            return lift_(self.rows, weights, x, y, x_factor, y_factor)
        self.add_(x.mul_(x_factor), weights)
        return x.add_(y.mul_(y_factor))

    def release(self) -> None:
        """The step is over."""

    @property
    def effective_rank(self) -> Tensor:
        """Directions that are not zeroed."""
        return self.active.sum() if self.projects else torch.full((), self.layout.total, device=self.layout.device)
