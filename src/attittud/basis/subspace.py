"""The subspace that a basis spans: V, the shared parameters that are its columns, and the update of
a step in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attittud.autograd.layout import Layout
from attittud.decompose import Residual, Weights, harmful_mask, residual_tolerance
from attittud.eta import Eta
from attittud.kernels import dot, gram, project, take_
from attittud.report import TaskReport
from attittud.workers.one import Workers


@dataclass(frozen=True)
class TaskVector:
    """The gradient of one auxiliary task over the shared parameters, with the weights of its
    parts.
    """

    gradient: Tensor
    eta: Eta | Weights
    """The weights of its three parts."""
    weight: float
    """The weight of the whole task."""


@dataclass(frozen=True)
class Update:
    """The update over the shared parameters, and the values for its report, which are computed when
    they are read.
    """

    vector: Tensor
    tasks: Mapping[str, TaskReport]
    captured_primary: Callable[[], Tensor]
    """Share of ‖g_prim‖² in the span."""
    effective_rank: Callable[[], Tensor]
    """The number of directions in use."""
    cosines: Mapping[str, Tensor]
    """Cosines of each task's parts with the judges' gradient, in steps that use the judges."""
    undo: Callable[[], None] | None = None
    """Restores what forming the update has changed besides gradients."""


class Subspace(ABC):
    """V (k x D) with orthonormal or zero rows; it need not be stored. `dtype`: V's type, by default
    the layout's.
    """

    rows: Tensor | None = None
    """V itself (not a copy), or None if it is not stored.

    Under FSDP2 these are this worker's columns. A user's products with them are not summed over the
    workers.
    """
    rounding: Tensor | None = None
    """VVᵀ - I (k x k), if the rows were rounded when they were stored."""

    def __init__(
        self, layout: Layout, rank: int, workers: Workers, dtype: torch.dtype | None = None
    ) -> None:
        self.layout = layout
        self.workers = workers
        self.rank = rank
        self.dtype = dtype or layout.dtype
        self.finite = torch.ones((), dtype=torch.bool, device=layout.device)
        """Whether the latest refresh succeeded."""
        self.active = torch.zeros(0, dtype=torch.bool, device=layout.device)
        """Which rows are not zero (k)."""

    @property
    def effective_rank(self) -> Tensor:
        """The number of directions in use."""
        return self.active.sum()

    @abstractmethod
    def replace(self, rows: Tensor, finite: Tensor, layout: Layout | None = None) -> None:
        """Replace V by the result of a refresh. `finite`: whether the refresh succeeded.

        `layout`: the same parameters, which may have got other names.
        """

    def load(self, rows: Tensor) -> None:
        """Load saved rows as they are."""
        raise ValueError(
            f"the state holds {rows.shape[0]} rows of a basis, but the basis of this guide is not "
            "stored"
        )

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The shared parameters by name, in the order of V's columns."""
        return dict(self.layout.named)

    def split(self, vector: Tensor) -> list[Tensor]:
        """Split a vector over the shared parameters into one view for each parameter."""
        return self.layout.views(vector)

    def gradient(self, loss: Tensor) -> Tensor:
        """Compute the gradient of a loss over the shared parameters as one vector, in the order of
        V's columns.
        """
        return self.layout.flatten(
            torch.autograd.grad(loss, self.layout.parameters, allow_unused=True)
        )

    @abstractmethod
    def coordinates(self, x: Tensor) -> Tensor:
        """V x, for a V that is kept after its step."""

    @abstractmethod
    def squares(self, primary: Tensor, auxiliary: Tensor, *, include_mean: bool = False) -> Tensor:
        """Squared norms of the helpful, harmful and neutral part of an auxiliary gradient by
        parameter: parameters x 3.

        They add up to the squared norm of the auxiliary gradient over all parameters. Within one
        parameter the parts need not be orthogonal and may even cancel. `include_mean`: as in
        `Guide`.
        """

    def update_(
        self,
        primary: Tensor,
        tasks: Mapping[str, TaskVector],
        judges: Tensor | None,
        primary_weight: float,
    ) -> Update:
        """Form the update where V is not stored; all vectors may be overwritten.

        `judges`: the judges' gradient. With a stored V, a step forms the update from k-vectors and
        does not call this.
        """
        raise NotImplementedError


def check_orthonormal(products: Tensor, *dtypes: torch.dtype) -> None:
    """Refuse saved rows that are not orthonormal: with them, every projection would be wrong. Rows
    may be zero.

    `products`: V Vᵀ (k x k). `dtypes`: the types in which the rows were or will be stored.
    """
    tolerance = 1e-4
    for dtype in dtypes:
        tolerance = max(tolerance, 4 * torch.finfo(dtype).eps)
    squares = products.diagonal()
    # Squared norms are 1 or 0 up to rounding.
    expected = torch.diag((squares > 0.25).to(products.dtype))
    wrong = ~((products - expected).abs() <= tolerance)
    if not bool(wrong.any()):
        return
    first, second = wrong.nonzero()[0].tolist()
    if bool(wrong.diagonal().any()):
        row = int(wrong.diagonal().nonzero()[0])
        reason = f"row {row} has the norm {float(squares[row].sqrt()):.4g}, but a row has the norm 1 or 0"
    else:
        reason = f"the rows {first} and {second} have the inner product {float(products[first, second]):.4g}, not 0"
    raise ValueError(
        f"the saved basis is not orthonormal: {reason}. Load another copy, or leave the basis out "
        "and let the next step compute it again (state_dict(include_basis=False))"
    )


class Stored(Subspace):
    """V as a matrix. Its address stays the same for one layout, because a captured CUDA graph may
    refer to it.
    """

    @property
    def stored(self) -> Tensor:
        """The rows."""
        assert self.rows is not None, "the basis is not fixed yet"
        return self.rows

    def replace(self, rows: Tensor, finite: Tensor, layout: Layout | None = None) -> None:
        """Replace the rows by new rows (at most `rank`) if these are finite; else keep the old
        rows.

        Until a refresh succeeds, V is zero and every gradient is neutral. At most as many rows are
        stored as there are examples. `active` and `rounding` change with the rows.
        """
        self.finite = finite
        if layout is not None:
            self.layout = layout
        if self.rows is None and rows.dtype == self.dtype:
            self.rows = rows  # the first time without a copy
            rows.masked_fill_(~finite, 0.0)
        else:
            self._overwrite(rows, finite)
        # Squared norms are 1 or 0 up to rounding.
        squares = self.workers.sum_columns(self.lengths().square())
        if self.active.shape != squares.shape:
            self.active = torch.zeros_like(squares, dtype=torch.bool)
        self.active.copy_(squares > 0.25)
        is_rounded = torch.finfo(self.dtype).eps > torch.finfo(self.layout.dtype).eps
        if is_rounded:  # V is stored with fewer digits than the rows had
            products = self.workers.sum_columns(gram(self.stored)) - torch.diag(
                self.active.double()
            )
            # In place, because a captured CUDA graph may refer to it.
            if self.rounding is not None and self.rounding.shape == products.shape:
                self.rounding.copy_(products)
            else:
                self.rounding = products

    def _overwrite(self, rows: Tensor, finite: Tensor) -> None:
        """Copy new rows over the old rows if they are finite; V gets more rows if needed."""
        count = rows.shape[0]
        if self.rows is None:
            self.rows = rows.new_zeros(count, self.layout.size, dtype=self.dtype)
        missing = count - self.rows.shape[0]
        if missing > 0:
            more = self.rows.new_zeros(missing, self.layout.size)
            self.rows = torch.cat([self.rows, more])
        take_(self.rows[:count], rows, finite)
        self.rows[count:].masked_fill_(finite, 0.0)

    def lengths(self) -> Tensor:
        """The norms of this worker's part of the directions. Whole directions have norm 1 or 0."""
        # Not in float64, because torch would then copy all of V.
        wide = torch.promote_types(self.stored.dtype, torch.float32)
        norms: Tensor = torch.linalg.vector_norm(self.stored, dim=1, dtype=wide)
        return norms

    def load(self, rows: Tensor) -> None:
        """Load saved rows (this worker's columns); refuses another shape, and rows that are not
        orthonormal.
        """
        if rows.ndim != 2 or rows.shape[0] > self.rank or rows.shape[1] != self.layout.size:
            raise ValueError(
                f"the saved basis has shape {tuple(rows.shape)}, but this model needs at most "
                f"{self.rank} x {self.layout.size}"
            )
        check_orthonormal(
            self.workers.sum_columns(gram(rows.to(self.layout.device))), rows.dtype, self.dtype
        )
        rows = rows.to(self.layout.device, self.dtype, copy=True)
        self.replace(rows, torch.ones((), dtype=torch.bool, device=rows.device))

    def coordinates(self, x: Tensor) -> Tensor:
        return project(self.stored, x)

    def squares(self, primary: Tensor, auxiliary: Tensor, *, include_mean: bool = False) -> Tensor:
        """Sum the squares of the entries of each part over each parameter: parameters x 3.

        The helpful and the harmful part are Vᵀ(helpful or harmful coordinates), plus a multiple of
        g_prim with `include_mean`. The neutral part is the rest of g_aux.
        """
        rows = self.stored
        p = project(rows, primary)
        a = project(rows, auxiliary)
        harmful = harmful_mask(a, p)
        # The coordinates of the helpful and the harmful part (2 x k), and their multiples of g_prim.
        parts = torch.stack([torch.where(harmful, 0.0, a), torch.where(harmful, a, 0.0)])
        multiples = torch.zeros(2, dtype=torch.float64, device=a.device)
        if include_mean:
            tolerance = residual_tolerance(primary.dtype)
            residual = Residual.of(p, dot(primary, primary), tolerance, self.rounding)
            extra = residual.coefficient(a, dot(primary, auxiliary))
            # g_prim - Vᵀp is one more direction, in which the primary coefficient is positive. So
            # the auxiliary coefficient is helpful if it is positive, and harmful if negative.
            helpful_vector, helpful_multiple = residual.lift(extra.clamp(min=0))
            harmful_vector, harmful_multiple = residual.lift(extra.clamp(max=0))
            parts = parts + torch.stack([helpful_vector, harmful_vector])
            multiples = torch.stack([helpful_multiple, harmful_multiple])
        squares = []
        views = map(self.layout.views, (rows, primary, auxiliary))
        for v, g_prim, g_aux in zip(*views, strict=True):
            in_span = torch.tensordot(parts.to(g_prim.dtype), v.to(g_prim.dtype), 1).double()
            both = in_span + multiples.view(2, *[1] * g_prim.ndim) * g_prim.double()
            helpful, harmful_part = both
            neutral = g_aux.double() - helpful - harmful_part
            squares.append(
                torch.stack([part.square().sum() for part in (helpful, harmful_part, neutral)])
            )
        return torch.stack(squares)
