"""The subspace that a basis spans: it projects gradients and finishes an update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attittud.autograd.layout import Layout
from attittud.decompose import Cosines, Judges, Residual, Weights, correction, harmful_mask, residual_tolerance
from attittud.kernels import Products, add_rows_, dot, gram, lift_, products, project, take_
from attittud.report import Split, TaskReport, ratio
from attittud.workers.one import Workers

if TYPE_CHECKING:
    from attittud.basis.base import Refresh
    from attittud.step.step import AuxiliaryGradient, Gradients


@dataclass(frozen=True)
class Finished:
    """The update over the shared parameters, and the values for its report."""

    update: Tensor | list[Tensor]
    """The update as one vector, or parameter by parameter."""
    tasks: dict[str, TaskReport]
    captured_primary: Callable[[], Tensor]  # share of ‖g_prim‖² in the span
    effective_rank: Callable[[], Tensor]  # the number of directions in use
    cosines: dict[str, Tensor]  # cosines of each task's parts with the judges' gradient, in steps that use the judges
    undo: Callable[[], None] | None = None  # restores what was changed besides the gradients


@dataclass(frozen=True)
class Numbers:
    """The numbers from which a report is computed when it is read; float64."""

    p: Tensor
    """V g_prim."""
    square: Tensor
    """‖g_prim‖²."""
    residual: Tensor
    """Norm of the part of g_prim outside of V if this part is one more direction, else empty."""
    active: Tensor
    """Which rows of V are not zero."""
    tasks: dict[str, tuple[Tensor, Tensor, Tensor]]
    """The coefficients of g_aux along all directions, ‖g_aux‖² and ⟨g_prim, g_aux⟩."""

    def gather(self) -> Gathered:
        """All numbers as one new vector."""
        each = [self.p, self.square, self.residual, self.active, *[t for task in self.tasks.values() for t in task]]
        vector = torch.cat([tensor.double().reshape(-1) for tensor in each])
        return Gathered(vector, [tensor.numel() for tensor in each], list(self.tasks))

    def taken(self) -> Numbers:
        return self


@dataclass(frozen=True)
class Gathered:
    """Numbers in one vector, which is split when they are read."""

    vector: Tensor
    sizes: list[int]
    names: list[str]

    def taken(self) -> Numbers:
        p, square, residual, active, *rest = self.vector.split(self.sizes)
        found = iter(rest)
        tasks = {name: (next(found), next(found)[0], next(found)[0]) for name in self.names}
        return Numbers(p, square[0], residual, active, tasks)


def finished(
    update: Tensor | list[Tensor], names: Iterable[str], numbers: Numbers | Gathered, cosines: dict[str, Tensor]
) -> Finished:
    """Return an update with its reports, which are computed from the numbers when they are read."""
    tasks = {name: TaskReport(partial(_split, numbers, name), partial(_products, numbers, name)) for name in names}
    return Finished(update, tasks, partial(_captured, numbers), partial(_rank, numbers), cosines)


def _split(numbers: Numbers | Gathered, name: str) -> Split:
    found = numbers.taken()
    a, active = found.tasks[name][0], torch.cat([found.active.bool(), found.residual > 0])
    return Split.of(a, harmful_mask(a, torch.cat([found.p, found.residual])), active)


def _products(numbers: Numbers | Gathered, name: str) -> tuple[Tensor, Tensor, Tensor]:
    found = numbers.taken()
    return *found.tasks[name][1:], found.square


def _captured(numbers: Numbers | Gathered) -> Tensor:
    found = numbers.taken()
    share = ratio(found.p.square().sum() + found.residual.square().sum(), found.square)
    return share.clamp(max=1.0) if found.residual.numel() else share


def _rank(numbers: Numbers | Gathered) -> Tensor:
    return numbers.taken().active.sum().long()


class Subspace(ABC):
    """V (k x D) with orthonormal or zero rows; it need not be stored. `dtype`: V's type, by default the layout's."""

    def __init__(self, layout: Layout, rank: int, workers: Workers, dtype: torch.dtype | None = None) -> None:
        self.layout = layout
        self.workers = workers
        self.rank = rank
        self.dtype = dtype or layout.dtype
        self.finite = torch.ones((), dtype=torch.bool, device=layout.device)  # whether the latest refresh succeeded
        self.active = torch.zeros(0, dtype=torch.bool, device=layout.device)  # which rows are not zero

    @property
    def rows(self) -> Tensor | None:
        """V itself (not a copy), or None if it is not stored.

        Under FSDP2 these are this worker's columns. A user's products with them are not summed over the workers.
        """
        return None

    @property
    def effective_rank(self) -> Tensor:
        """The number of directions in use."""
        return self.active.sum()

    def replace(self, rows: Tensor, finite: Tensor, refresh: Refresh | None = None) -> None:
        """Replace V by the result of a refresh. `finite`: whether the refresh succeeded."""
        self.finite = finite
        if refresh is not None:
            self.layout = refresh.layout  # parameters may have got other names

    def load(self, rows: Tensor) -> None:
        """Load saved rows as they are."""
        raise ValueError(f"the state holds {rows.shape[0]} rows of a basis, but the basis of this guide is not stored")

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The shared parameters by name, in the order of V's columns."""
        return dict(self.layout.named)

    def split(self, vector: Tensor) -> list[Tensor]:
        """Split a vector over the shared parameters into one view for each parameter."""
        return self.layout.views(vector)

    def gradient(self, loss: Tensor) -> Tensor:
        """Compute the gradient of a loss over the shared parameters as one vector, in the order of V's columns."""
        return self.layout.flatten(torch.autograd.grad(loss, self.layout.parameters, allow_unused=True))

    @abstractmethod
    def coordinates(self, x: Tensor) -> Tensor:
        """V x, for a V that is kept after its step."""

    @abstractmethod
    def squares(self, primary: Tensor, auxiliary: Tensor, *, include_mean: bool = False) -> Tensor:
        """Squared norms of the helpful, harmful and neutral part of an auxiliary gradient by parameter: parameters x 3.

        They add up to the squared norm of the auxiliary gradient over all parameters. Within one parameter the parts need not
        be orthogonal and may even cancel. `include_mean`: as in `Guide`.
        """

    @abstractmethod
    def finish(self, step: Gradients, primary_weight: float) -> Finished:
        """Compare the signs and form the update over the shared parameters."""


class Directions(Subspace):
    """Compares gradients along k directions. Signs and weights are computed from k-vectors."""

    rounding: Tensor | None = None
    """VVᵀ - I (k x k), if the rows were rounded when they were stored."""

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """V x, float64."""

    @abstractmethod
    def products(self, x: Tensor, y: Tensor) -> Products:
        """V x, V y and the inner products of x and y."""

    @abstractmethod
    def add_(self, x: Tensor, weights: Tensor) -> None:
        """x += Vᵀ weights."""

    def lift_(self, weights: Tensor, x: Tensor, y: Tensor, x_factor: float | Tensor, y_factor: Tensor) -> Tensor:
        """x becomes x_factor * x + Vᵀ weights + y_factor * y; y may be overwritten."""
        self.add_(x.mul_(x_factor), weights)
        return x.add_(y.mul_(y_factor))

    def inner(self, x: Tensor, y: Tensor) -> Tensor:
        """The inner product of two gradients, float64."""
        return dot(x, y)

    def judges(self, gradient: Tensor, primary: Tensor) -> Judges:
        """Compare the judges' gradient with V and with the primary gradient."""
        inner = self.inner(gradient, primary)
        return Judges(self.project(gradient), self.inner(gradient, gradient), inner)

    def coordinates(self, x: Tensor) -> Tensor:
        return self.project(x)

    def squares(self, primary: Tensor, auxiliary: Tensor, *, include_mean: bool = False) -> Tensor:
        rows = self.rows
        assert rows is not None
        p, a = self.project(primary), self.project(auxiliary)
        harmful = harmful_mask(a, p)
        parts = torch.stack([torch.where(harmful, 0.0, a), torch.where(harmful, a, 0.0)])
        multiples = torch.zeros(2, dtype=torch.float64, device=a.device)
        if include_mean:
            residual = Residual.of(p, dot(primary, primary), residual_tolerance(primary.dtype), self.rounding)
            extra = residual.coefficient(a, dot(primary, auxiliary))
            # The residual points along the primary gradient, so the sign of its coefficient decides.
            lifted = [residual.lift(weight) for weight in (extra.clamp(min=0), extra.clamp(max=0))]
            parts = parts + torch.stack([vector for vector, _ in lifted])
            multiples = torch.stack([multiple for _, multiple in lifted])
        found = []
        for basis, own, gradient in zip(*map(self.layout.views, (rows, primary, auxiliary)), strict=True):
            in_span = torch.tensordot(parts.to(own.dtype), basis.to(own.dtype), 1).double()
            helps, harms = in_span + multiples.view(2, *[1] * own.ndim) * own.double()
            found.append([part.square().sum() for part in (helps, harms, gradient.double() - helps - harms)])
        return torch.stack([torch.stack(row) for row in found])

    def finish(self, step: Gradients, primary_weight: float) -> Finished:
        update, numbers, cosines = self.compute(step, primary_weight)
        return finished(update, step.tasks, numbers, cosines)

    def compute(self, step: Gradients, primary_weight: float) -> tuple[Tensor, Numbers, dict[str, Tensor]]:
        """Return the update, the numbers of its report, and the cosines with the judges' gradient."""
        p, square, judges = step.measure()
        known = square is not None and not step.skips
        for task in step.tasks.values():
            # The primary gradient may have changed after this task was reduced to a k-vector.
            if task.square is None or task.inner is None or task.primary_calls != step.primary_calls:
                known = False
        unknown = p if known else torch.full((), torch.nan, dtype=torch.float64, device=p.device)
        square = unknown if square is None or step.skips else square
        residual = None
        if step.include_mean:
            residual = Residual.of(p, square, residual_tolerance(self.layout.dtype), self.rounding)
        directions = p if residual is None else torch.cat([p, residual.norm[None]])
        if residual is not None and judges is not None:
            row = residual.coefficient(judges.rows, judges.primary)
            judges = replace(judges, rows=torch.cat([judges.rows, row[None]]))
        weights: Tensor | None = None
        primary_factor = torch.full((), primary_weight, dtype=torch.float64, device=p.device)
        tasks, cosines = {}, {}
        for name, task in step.tasks.items():
            a, aa = task.a, unknown if task.square is None else task.square
            assert a is not None
            same = task.inner is not None and task.primary_calls == step.primary_calls
            inner = task.inner if same and task.inner is not None else unknown
            if residual is not None:
                a = torch.cat([a, residual.coefficient(a, inner)[None]])
            harmful = harmful_mask(a, directions)
            if judges is not None and isinstance(task.eta, Weights) and task.judged is not None:
                found = Cosines(*Cosines.parts(a, harmful, judges.rows), task.judged, aa)
                cosines[name] = found.values(judges, square, self.layout.dtype)
            change = correction(a, harmful, task.eta)
            change = change if task.weight == 1.0 else task.weight * change
            if residual is not None:
                in_span, times_primary = residual.lift(change[-1])
                change = change[:-1] + in_span
                missing = _missing(task, inner, change * p, times_primary * square, square, self.layout.dtype)
                primary_factor = primary_factor + times_primary + missing
            weights = change if weights is None else weights + change
            tasks[name] = a, aa, inner
        assert weights is not None
        update = self._update(step, weights, primary_factor)
        active = self.active.clone()  # a report may be read after the next refresh
        return (
            update,
            Numbers(p, square, p[:0] if residual is None else residual.norm[None], active, tasks),
            cosines,
        )

    def _update(self, step: Gradients, weights: Tensor, primary_factor: Tensor) -> Tensor:
        total, factor = step.summed()
        whole = False not in [task.whole for task in step.tasks.values()]
        assert step.primary_gradient is not None
        if step.primary_whole and whole:
            return self.lift_(weights, total, step.primary_gradient, factor, primary_factor)
        total.mul_(factor)
        scaled = step.primary_gradient.mul_(primary_factor)
        if not step.primary_whole:
            total.add_(scaled)
        if not whole:
            step.sum_examples_(total, "gradients")
        self.add_(total, weights)
        return total.add_(scaled) if step.primary_whole else total


def _missing(
    task: AuxiliaryGradient, inner: Tensor, in_span: Tensor, along: Tensor, square: Tensor, dtype: torch.dtype
) -> Tensor:
    """The multiple of g_prim to add so that an auxiliary update does not oppose g_prim.

    `inner`, `in_span` and `along` are inner products with g_prim: of the auxiliary gradient, of the correction in V, and of
    the correction's multiple of g_prim. If g_prim lies almost in the span, its part outside looks like rounding and is dropped
    as a direction. But a large auxiliary gradient may lie along this very part.
    """
    eta, nothing = task.eta, torch.zeros_like(square)
    if isinstance(eta, Weights) or task.weight < 0 or not eta.helpful >= 0 >= eta.harmful:
        return nothing
    terms = torch.cat([(task.weight * eta.neutral * inner)[None], in_span, along[None]])
    served = terms.sum()
    lacking = served < -8 * torch.finfo(dtype).eps * terms.abs().sum()
    return torch.where(lacking & (square > 0), -served / square, nothing)


def check_orthonormal(products: Tensor, *dtypes: torch.dtype) -> None:
    """Refuse saved rows that are not orthonormal: with them, every projection would be wrong. Rows may be zero.

    `products`: V Vᵀ (k x k). `dtypes`: the types in which the rows were or will be stored.
    """
    tolerance = max(1e-4, *[4 * torch.finfo(dtype).eps for dtype in dtypes])
    squares = products.diagonal()
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
        f"the saved basis is not orthonormal: {reason}. Load another copy, or leave the basis out and let the next step compute "
        "it again (state_dict(include_basis=False))"
    )


class Stored(Directions):
    """V as a matrix. Its address stays the same for one layout, because a captured CUDA graph may refer to it."""

    _rows: Tensor | None = None

    @property
    def rows(self) -> Tensor:
        assert self._rows is not None, "the basis is not fixed yet"
        return self._rows

    def replace(self, rows: Tensor, finite: Tensor, refresh: Refresh | None = None) -> None:
        """Replace the rows by new rows (at most `rank`) if these are finite; else keep the old rows.

        Until a refresh succeeds, V is zero and every gradient is neutral. At most as many rows are stored as there are examples.
        """
        super().replace(rows, finite, refresh)
        count, known = rows.shape[0], 0 if self._rows is None else self._rows.shape[0]
        if known == 0 and rows.dtype == self.dtype:
            self._rows = rows  # the first time without a copy
            rows.masked_fill_(~finite, 0.0)
        else:
            if self._rows is None or known < count:
                more = torch.zeros(count - known, self.layout.size, dtype=self.dtype, device=self.layout.device)
                self._rows = more if self._rows is None else torch.cat([self._rows, more])
            take_(self.rows[:count], rows, finite)
            self.rows[count:].masked_fill_(finite, 0.0)
        squares = self.workers.sum_columns(self.lengths().square())
        if self.active.shape != squares.shape:
            self.active = torch.zeros_like(squares, dtype=torch.bool)
        self.active.copy_(squares > 0.25)
        if torch.finfo(self.dtype).eps > torch.finfo(self.layout.dtype).eps:
            found = self.workers.sum_columns(gram(self.rows)) - torch.diag(self.active.double())
            # In place, because a captured CUDA graph may refer to it.
            same = self.rounding is not None and self.rounding.shape == found.shape
            self.rounding = self.rounding.copy_(found) if same and self.rounding is not None else found

    def lengths(self) -> Tensor:
        """The norms of this worker's part of the directions. Whole directions have norm 1 or 0."""
        # Not in float64, because torch would then copy all of V.
        wide = torch.promote_types(self.rows.dtype, torch.float32)
        norms: Tensor = torch.linalg.vector_norm(self.rows, dim=1, dtype=wide)
        return norms

    def load(self, rows: Tensor) -> None:
        if rows.ndim != 2 or rows.shape[0] > self.rank or rows.shape[1] != self.layout.size:
            raise ValueError(
                f"the saved basis has shape {tuple(rows.shape)}, but this model needs at most {self.rank} x {self.layout.size}"
            )
        check_orthonormal(self.workers.sum_columns(gram(rows.to(self.layout.device))), rows.dtype, self.dtype)
        rows = rows.to(self.layout.device, self.dtype, copy=True)
        self.replace(rows, torch.ones((), dtype=torch.bool, device=rows.device))

    def project(self, x: Tensor) -> Tensor:
        return project(self.rows, x)

    def products(self, x: Tensor, y: Tensor) -> Products:
        return products(self.rows, x, y)

    def judges(self, gradient: Tensor, primary: Tensor) -> Judges:
        if not gradient.is_cuda:
            return super().judges(gradient, primary)
        found = self.products(gradient, primary)  # more numbers than are needed, but in a single kernel
        return Judges(found.rows_x, found.xx, found.xy)

    def add_(self, x: Tensor, weights: Tensor) -> None:
        add_rows_(x, self.rows, weights)

    def lift_(self, weights: Tensor, x: Tensor, y: Tensor, x_factor: float | Tensor, y_factor: Tensor) -> Tensor:
        return lift_(self.rows, weights, x, y, x_factor, y_factor)
