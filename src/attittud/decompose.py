"""The maths alone: project, split by sign, recombine. No autograd, no model, no workers.

Inside the span the two gradients are described by the k-vectors a = V g_aux and p = V g_prim. The
update has the *correction form*

    neutral * g_aux + Vᵀ((eta_j - neutral) a_j)        eta_j = helpful or harmful

which never forms the three parts as D-vectors. For equal weights the correction is exactly zero.

`decompose` works on whole gradients, for papers, tests and notebooks. `combine` works on the
numbers of a step alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attittud.eta import Eta


@dataclass(frozen=True)
class Weights:
    """The weights of eta="auto": like an `Eta`, but as numbers on the device, each between 0 and
    1.
    """

    neutral: Tensor
    helpful: Tensor
    harmful: Tensor


def harmful_mask(a: Tensor, p: Tensor) -> Tensor:
    """Mask of the directions in which the auxiliary and the primary coefficient have opposite
    signs.

    It multiplies the signs rather than the coefficients, because a * p underflows for small
    gradients.
    """
    return torch.sign(a) * torch.sign(p) < 0


def correction(a: Tensor, harmful: Tensor, eta: Eta | Weights) -> Tensor:
    """Coefficients (eta_j - neutral) a_j of the correction Vᵀ(...); exactly zero for three equal
    weights.
    """
    return torch.where(harmful, (eta.harmful - eta.neutral) * a, (eta.helpful - eta.neutral) * a)


@dataclass(frozen=True)
class Residual:
    """g_prim as one more basis row, described by k-vectors alone: no vector of length D is formed.

    The row is r/‖r‖ with r = g_prim - Vᵀp, so p_{k+1} = ‖r‖ and a_{k+1} = (⟨g_prim, g_aux⟩ -
    pᵀa)/‖r‖. It is dropped (norm = 0) when g_prim already lies in the span up to rounding.
    """

    p: Tensor
    """V g_prim (k)."""
    norm: Tensor
    """‖r‖, or 0 if the row is dropped."""

    @classmethod
    def of(
        cls, p: Tensor, primary_square: Tensor, tolerance: float, rounding: Tensor | None = None
    ) -> Residual:
        """Compute ‖r‖ from ‖r‖² = ‖g_prim‖² - ‖p‖² + pᵀ(VVᵀ - I)p.

        Args:
            p: V g_prim (k).
            primary_square: ‖g_prim‖².
            tolerance: an r of at most this length, relative to ‖g_prim‖, counts as zero.
            rounding: VVᵀ - I of rows that were rounded when they were stored; None: it is zero.
                With such rows the difference of the squares may almost vanish although r does not.
                An r as small as the rounding counts as zero too.
        """
        square = primary_square - p.square().sum()
        least = tolerance**2 * primary_square
        if rounding is not None:
            square = square + p @ rounding @ p
            least = torch.maximum(least, 64 * rounding.square().sum() * primary_square)
        above_rounding = square > least
        return cls(p, torch.where(above_rounding, square, 0.0).sqrt())

    def coefficient(self, a: Tensor, inner: Tensor) -> Tensor:
        """Return a_{k+1} from a = V g_aux and `inner` = ⟨g_prim, g_aux⟩; 0 if the row is dropped."""
        return torch.where(self.norm > 0, (inner - torch.dot(self.p, a)) / self.norm, 0.0)

    def lift(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return `weight` times the row r/‖r‖, as a k-vector for V and a multiple of g_prim: r =
        g_prim - Vᵀp, so they are -(weight/‖r‖) p and weight/‖r‖.
        """
        multiple = torch.where(self.norm > 0, weight / self.norm, 0.0)
        return -multiple * self.p, multiple


def residual_tolerance(dtype: torch.dtype) -> float:
    """Return the size of ‖r‖/‖g_prim‖ up to which it counts as rounding: ‖r‖² is a difference of
    squares, which loses half of the digits.
    """
    return 4 * math.sqrt(torch.finfo(dtype).eps)


@dataclass(frozen=True)
class Judges:
    """The judges' mean gradient in numbers."""

    rows: Tensor
    """V g_judge (k)."""
    square: Tensor
    """‖g_judge‖²."""
    primary: Tensor
    """⟨g_judge, g_prim⟩."""


@dataclass(frozen=True)
class Cosines:
    """Inner products of one auxiliary task with the judges' gradient in one step, in float64.

    `dots` and `squares` have two entries, for the helpful and for the harmful part.
    """

    dots: Tensor
    """⟨g_judge, part⟩."""
    squares: Tensor
    """‖part‖²."""
    inner: Tensor
    """⟨g_judge, g_aux⟩."""
    square: Tensor
    """‖g_aux‖²."""

    @staticmethod
    def parts(a: Tensor, harmful: Tensor, judges: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `dots` and `squares` from the coefficients of g_aux and of g_judge in the basis:
        sums of a_j judges_j and of a_j² over the helpful and over the harmful directions.
        """
        terms = torch.stack([a * judges, a.square()])
        helpful_sums = torch.where(harmful, 0.0, terms).sum(1)
        harmful_sums = torch.where(harmful, terms, 0.0).sum(1)
        dots, squares = torch.stack([helpful_sums, harmful_sums], dim=1)
        return dots, squares

    def values(self, judges: Judges, primary_square: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the cosines of the neutral, helpful and harmful part, of g_aux and of g_prim with
        g_judge (5); NaN where g_judge is zero or a value is not finite.

        A part whose squared norm is only rounding, for gradients of this `dtype`, has cosine 0.
        """
        # Five vectors: the neutral, helpful and harmful part, g_aux and g_prim. The neutral part is
        # g_aux minus the two others, and orthogonal to them.
        neutral_dot = self.inner - self.dots.sum()
        neutral_square = self.square - self.squares.sum()
        dots = torch.stack([neutral_dot, *self.dots, self.inner, judges.primary])
        squares = torch.stack([neutral_square, *self.squares, self.square, primary_square])
        cosines = dots / (squares.clamp(min=0).sqrt() * judges.square.sqrt())
        # A part that is zero gets cosine 0. If g_judge is zero the cosine is NaN, because it says
        # nothing about the parts. What counts as rounding depends on the vector that a part was
        # taken from: g_aux, and for the last one g_prim itself.
        square_of_whole = torch.stack([*[self.square] * 4, primary_square])
        rounding = 64 * torch.finfo(dtype).eps * square_of_whole
        is_zero = (squares <= rounding) & (judges.square > 0)
        cosine_of_zero = torch.where(torch.isfinite(square_of_whole), 0.0, torch.nan)
        return torch.where(is_zero, cosine_of_zero, cosines).clamp(-1, 1)


# ---------------------------------------------------------------------------- the numbers of a step


@dataclass(frozen=True)
class TaskNumbers:
    """One auxiliary gradient in numbers; float64, summed over the workers."""

    eta: Eta | Weights
    weight: float
    """The weight of the task's loss."""
    a: Tensor
    """V g_aux (k)."""
    square: Tensor | None
    """‖g_aux‖²; None where the whole gradient never was in memory."""
    inner: Tensor | None
    """⟨g_prim, g_aux⟩; None where it is not known."""
    judged: Tensor | None = None
    """⟨g_judge, g_aux⟩ in a step that uses the judges."""


@dataclass(frozen=True)
class Numbers:
    """All gradients of a step in numbers; float64, summed over the workers. The update depends on
    nothing else.
    """

    p: Tensor
    """V g_prim (k)."""
    square: Tensor | None
    """‖g_prim‖²; None where the whole gradient never was in memory."""
    tasks: Mapping[str, TaskNumbers]
    judges: Judges | None = None


@dataclass(frozen=True)
class Combination:
    """The update in numbers: Σ_t weight_t neutral_t g_aux_t + Vᵀ `rows` + `primary` g_prim."""

    rows: Tensor
    """Coefficients of the rows of V (k)."""
    primary: Tensor
    """The multiple of g_prim."""
    p: Tensor
    """V g_prim."""
    square: Tensor
    """‖g_prim‖², or NaN."""
    residual: Tensor
    """The norm of the part of g_prim outside of V, if this part is one more direction (1); else
    empty.
    """
    tasks: Mapping[str, tuple[Tensor, Tensor, Tensor]]
    """For each task its coefficients along all directions, ‖g_aux‖² and ⟨g_prim, g_aux⟩; NaN where
    they are not known.
    """
    cosines: Mapping[str, Tensor]
    """Cosines of each task's parts with the judges' gradient, in a step that uses the judges."""


def combine(
    numbers: Numbers,
    primary_weight: float,
    *,
    include_mean: bool,
    dtype: torch.dtype,
    rounding: Tensor | None = None,
) -> Combination:
    """Compare the signs along every direction, and weigh the parts of each auxiliary gradient.

        rows = Σ_t weight_t (eta_tj - neutral_t) a_tj        eta_tj = harmful_t if a_tj p_j < 0 else helpful_t

    In a step with judges, also compute the cosines of the parts of each task with eta="auto".

    Args:
        numbers: all gradients of the step in numbers.
        primary_weight: the weight of g_prim in the update.
        include_mean: append the residual of g_prim as one more direction (see `Residual`). Its
            part of the correction then goes into `rows` and into the multiple of g_prim.
        dtype: the type of the gradients, whose rounding decides which lengths count as zero.
        rounding: VVᵀ - I of rows that were rounded when they were stored.
    """
    p = numbers.p
    square = _or_nan(numbers.square, p)
    judges = numbers.judges
    directions = p
    residual = None
    if include_mean:
        residual = Residual.of(p, square, residual_tolerance(dtype), rounding)
        directions = torch.cat([p, residual.norm[None]])
    if residual is not None and judges is not None:
        # The judges' coefficient along the last direction, as for the auxiliary gradients below.
        last = residual.coefficient(judges.rows, judges.primary)
        judges = replace(judges, rows=torch.cat([judges.rows, last[None]]))
    rows: Tensor | None = None
    primary = torch.full((), primary_weight, dtype=torch.float64, device=p.device)
    tasks = {}
    cosines = {}
    for name, task in numbers.tasks.items():
        a = task.a
        auxiliary_square = _or_nan(task.square, p)
        inner = _or_nan(task.inner, p)
        if residual is not None:
            a = torch.cat([a, residual.coefficient(a, inner)[None]])
        harmful = harmful_mask(a, directions)
        if judges is not None and isinstance(task.eta, Weights) and task.judged is not None:
            dots, squares = Cosines.parts(a, harmful, judges.rows)
            products = Cosines(dots, squares, task.judged, auxiliary_square)
            cosines[name] = products.values(judges, square, dtype)
        change = correction(a, harmful, task.eta)
        if task.weight != 1.0:
            change = task.weight * change
        if residual is not None:
            # The correction along the last direction, in terms of V and of g_prim.
            in_span, multiple = residual.lift(change[-1])
            change = change[:-1] + in_span
            missing = _missing_multiple(task, inner, change * p, multiple * square, square, dtype)
            primary = primary + multiple + missing
        if rows is not None:
            change = rows + change
        rows = change
        tasks[name] = (a, auxiliary_square, inner)
    assert rows is not None
    outside = p[:0]
    if residual is not None:
        outside = residual.norm[None]
    return Combination(rows, primary, p, square, outside, tasks, cosines)


def _or_nan(number: Tensor | None, like: Tensor) -> Tensor:
    """Return a number, or NaN on the device of `like` where the number is not known."""
    if number is not None:
        return number
    return torch.full((), torch.nan, dtype=torch.float64, device=like.device)


def _missing_multiple(
    task: TaskNumbers,
    inner: Tensor,
    in_span: Tensor,
    along: Tensor,
    square: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Compute the multiple of g_prim to add so that the update of one task does not oppose g_prim: 0
    in most cases.

    If g_prim lies almost in the span, its part outside looks like rounding and is dropped as a
    direction. But a large auxiliary gradient may lie along this very part. Only fixed weights with
    helpful >= 0 >= harmful promise that no update opposes g_prim.

    Args:
        task: the task, with its weights.
        inner: ⟨g_prim, g_aux⟩.
        in_span: inner products with g_prim of the correction along each row of V (k).
        along: the inner product with g_prim of the correction's multiple of g_prim.
        square: ‖g_prim‖².
        dtype: the type of the gradients, for their rounding.
    """
    eta = task.eta
    none = torch.zeros_like(square)
    if isinstance(eta, Weights) or task.weight < 0 or not eta.helpful >= 0 >= eta.harmful:
        return none
    # Their sum is the inner product of g_prim and the task's update.
    terms = torch.cat([(task.weight * eta.neutral * inner)[None], in_span, along[None]])
    along_primary = terms.sum()
    opposes = along_primary < -8 * torch.finfo(dtype).eps * terms.abs().sum()
    return torch.where(opposes & (square > 0), -along_primary / square, none)


# ---------------------------------------------------------------------------------- whole gradients


@dataclass(frozen=True)
class Decomposition:
    """The parts of an auxiliary gradient: `neutral + helpful + harmful` is the gradient again."""

    gradient: Tensor
    """g_aux (D)."""
    basis: Tensor
    """V (k x D)."""
    coefficients: Tensor
    """a = V g_aux (k)."""
    mask: Tensor
    """The harmful directions (k booleans)."""

    @property
    def helpful(self) -> Tensor:
        """The part in directions where both gradients point the same way."""
        return self.basis.T @ torch.where(self.mask, 0.0, self.coefficients)

    @property
    def harmful(self) -> Tensor:
        """The part in directions where the two gradients oppose each other."""
        return self.basis.T @ torch.where(self.mask, self.coefficients, 0.0)

    @property
    def neutral(self) -> Tensor:
        """The part outside of the span."""
        return self.gradient - self.basis.T @ self.coefficients

    def combine(self, eta: Eta) -> Tensor:
        """The re-weighted auxiliary gradient (add `primary_weight * g_prim` for the update)."""
        return eta.neutral * self.gradient + self.basis.T @ correction(
            self.coefficients, self.mask, eta
        )


def decompose(
    g_aux: Tensor, g_prim: Tensor, basis: Tensor, *, include_mean: bool = False, check: bool = False
) -> Decomposition:
    """Split `g_aux` (D) along the rows of `basis` (k x D, orthonormal; zero rows are ignored),
    compared with `g_prim` (D).

    `include_mean` appends the part of `g_prim` outside of the span as a last row; only then is the
    neutral part orthogonal to `g_prim` for every basis. `check` verifies that the rows are
    orthonormal or zero.

    >>> import torch
    >>> parts = decompose(torch.tensor([1.0, -2.0, 3.0]), torch.tensor([1.0, 1.0, 0.0]), torch.eye(3)[:2])
    >>> parts.helpful.tolist(), parts.harmful.tolist(), parts.neutral.tolist()
    ([1.0, 0.0, 0.0], [0.0, -2.0, 0.0], [0.0, 0.0, 3.0])
    """
    if g_aux.ndim != 1 or g_prim.shape != g_aux.shape:
        raise ValueError(
            f"g_aux and g_prim must be vectors of one length, got shapes {tuple(g_aux.shape)} and {tuple(g_prim.shape)}; "
            "flatten and concatenate the gradients first"
        )
    if basis.ndim != 2 or basis.shape[1] != g_aux.shape[0]:
        raise ValueError(
            f"basis must be k x {g_aux.shape[0]} like the gradients, got {tuple(basis.shape)}"
        )
    if check:
        _check_orthonormal(basis)
    if include_mean:
        residual = g_prim - basis.T @ (basis @ g_prim)
        # A second time, because g_prim may lie almost in the span.
        residual = residual - basis.T @ (basis @ residual)
        norm = torch.linalg.vector_norm(residual)
        # r is formed explicitly, so it is exact up to a few roundings of g_prim.
        above_rounding = norm > 32 * torch.finfo(g_prim.dtype).eps * torch.linalg.vector_norm(
            g_prim
        )
        basis = torch.cat([basis, torch.where(above_rounding, residual / norm, 0.0)[None]])
    a = basis @ g_aux
    return Decomposition(g_aux, basis, a, harmful_mask(a, basis @ g_prim))


def _check_orthonormal(basis: Tensor) -> None:
    """Refuse a basis (k x D) whose rows are not orthonormal; zero rows are allowed."""
    gram = basis.double() @ basis.double().T
    expected = torch.diag((gram.diagonal() > 0.5).to(gram.dtype))
    if gram.numel() == 0:
        return
    error = float((gram - expected).abs().max())
    if not error <= 1e3 * torch.finfo(basis.dtype).eps:
        raise ValueError(
            f"the rows of basis must be orthonormal (or zero): VVᵀ differs from the identity by {error:.2g}; "
            "orthonormalise first, for example torch.linalg.qr(basis.T).Q.T"
        )
