"""What a basis is: a rule that turns products with J into orthonormal rows V."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attittud.basis.noise import gaussian
from attittud.basis.orthonormal import orthonormalise_
from attittud.engine.base import Jacobian
from attittud.parameters import Layout


@dataclass
class Refresh:
    """A basis in the making: what has been added up so far over the primary calls of one step."""

    layout: Layout
    rank: int
    seed: int
    index: Tensor
    rows: Tensor | None = None
    examples: int = 0

    def add(self, rows: Tensor) -> None:
        """Add rows (r x D) to those of earlier calls."""
        self.rows = rows.clone() if self.rows is None else self.rows.add_(rows)

    def gaussian(self, rows: int, first: int, columns: int, *, first_row: int = 0, dtype: torch.dtype) -> Tensor:
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
    return orthonormalise_(refresh.rows).finite
