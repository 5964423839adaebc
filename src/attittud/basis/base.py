"""What a basis is: a rule that turns products with J into orthonormal rows V."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attittud.autograd.layout import Layout
from attittud.basis.noise import gaussian
from attittud.basis.orthonormal import Rows, orthonormalise_
from attittud.engine.base import Jacobian
from attittud.workers.one import Share, Workers


@dataclass
class Refresh:
    """A basis in the making: what has been added up so far over the primary calls of one step."""

    layout: Layout
    rank: int
    seed: int
    index: Tensor
    workers: Workers
    rows: Tensor | None = None
    examples: int | Tensor = 0
    """Examples of all workers in earlier primary calls (on the device where there are several workers)."""
    calls: int = 0
    share: Share = field(default_factory=Share)
    """This worker's part of the examples of the current call."""
    shrink: float | Tensor = 1.0
    """By what J is multiplied on the way."""
    scope: Callable[[], AbstractContextManager[None]] = nullcontext
    """What has to be around every use of the losses' graph."""

    @property
    def first(self) -> int | Tensor:
        """The number of this worker's first example of the current call, counted over all workers and calls."""
        return self.examples + self.share.first

    def sum_examples_(self) -> None:
        """Add up the rows over workers, where each has only those of its own examples."""
        if self.rows is None:
            self.rows = self.layout.empty(self.rank).zero_()
        self.rows = self.workers.sum_examples_(self.rows, "the rows of the basis")

    def orthonormalise_(self, rows: Tensor) -> Rows:
        return orthonormalise_(rows, self.workers.sum_columns)

    def gaussian(
        self, rows: int, first: int | Tensor, columns: int, *, first_row: int = 0, dtype: torch.dtype
    ) -> Tensor:
        return gaussian(
            self.seed,
            self.index,
            rows=rows,
            first_row=first_row,
            first=first,
            columns=columns,
            dtype=dtype,
            device=self.layout.device,
        )

    def narrow_(self, kept: Layout) -> None:
        """Leave out the columns of parameters that turned out not to be shared."""
        if self.rows is not None:
            self.rows = self.layout.narrow_(self.rows, kept)
        self.layout = kept


class Basis(ABC):
    """The subspace in which the two tasks are compared."""

    name: ClassVar[str]
    needs: ClassVar[Literal["jacobian", "mean", "nothing"]]
    """What a basis asks of the primary losses: products with J, their mean gradient, or nothing."""
    adds_up: ClassVar[bool] = True
    """Whether several primary calls of one step can contribute to one basis."""

    stored: ClassVar[bool] = True
    """Whether V is kept as a matrix."""
    keeps_graph: ClassVar[bool] = False
    """Whether the graph of the losses is needed until the step is over."""

    def rank(self, asked: int) -> int:
        """How many rows V has when a user asks for some number."""
        return asked

    def working_rows(self, rank: int, examples: int) -> int:
        """Rows of length D that a refresh works on beside the stored V."""
        return rank

    def add(self, refresh: Refresh, jacobian: Jacobian) -> None:  # noqa: B027 - bases that need no Jacobian add nothing
        """Take in the examples of one primary call."""

    @abstractmethod
    def finish(self, refresh: Refresh) -> Tensor:
        """Leave orthonormal (or zero) rows in `refresh.rows`; returns whether they are finite (on the device)."""


def orthonormal_rows(refresh: Refresh) -> Tensor:
    """Gram-Schmidt of what was added up."""
    assert refresh.rows is not None
    return refresh.orthonormalise_(refresh.rows).finite
