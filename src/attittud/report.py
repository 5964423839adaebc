"""The report of a step: its values stay on the device and are computed only when they are read.

`Step` hands over the k-vectors and inner products that it has computed anyway (`Comparison`). With
a_j and p_j the coefficients of g_aux and g_prim along direction j, and H the directions in which
their signs differ:

    helpful²            = Σ_{j not in H} a_j²
    harmful²            = Σ_{j in H} a_j²
    neutral²            = ‖g_aux‖² - helpful² - harmful²
    captured_auxiliary  = (helpful² + harmful²) / ‖g_aux‖²
    captured_primary    = Σ_j p_j² / ‖g_prim‖²
    agreement           = 1 - |H| / number of directions
    cosine              = ⟨g_prim, g_aux⟩ / (‖g_prim‖ ‖g_aux‖)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from attittud.decompose import Weights, harmful_mask

SCORED = ("neutral", "helpful", "harmful", "auxiliary", "primary")
"""The gradients that get a score: the three parts, the whole auxiliary gradient and, for
comparison, the primary gradient.
"""
PARTS = slice(0, 3)
"""The positions of the three parts in `SCORED`."""
WHOLE = SCORED.index("auxiliary")
"""The position of the whole auxiliary gradient in `SCORED`."""


@dataclass(frozen=True)
class EarnedWeights:
    """The weights and scores of one auxiliary task under eta="auto"."""

    weights: Weights
    """The weights of this step, earned in earlier steps."""
    score: Tensor
    """Running means of the cosines between the `SCORED` gradients and the judges' gradient,
    including this step (5).
    """
    error: Tensor
    """Standard errors of these means (5)."""
    skipped: Tensor
    """How often the judges' gradient was zero, NaN or Inf so far; no score changed in these
    steps.
    """

    def to_dict(self) -> dict[str, float | int]:
        """Return plain numbers. Waits for the device."""
        tensors = {
            "weight_neutral": self.weights.neutral,
            "weight_helpful": self.weights.helpful,
            "weight_harmful": self.weights.harmful,
        }
        for name, score in zip(SCORED, self.score, strict=True):
            tensors[f"score_{name}"] = score
        # All three weights depend on this error alone.
        tensors["error_auxiliary"] = self.error[WHOLE]
        tensors["skipped_scores"] = self.skipped
        figures: dict[str, float | int] = {**plain(tensors)}
        figures["skipped_scores"] = int(figures["skipped_scores"])
        return figures


class Split(NamedTuple):
    """Squared norms of the helpful and the harmful part, the number of harmful directions, and of
    all directions in use.
    """

    helpful: Tensor
    harmful: Tensor
    harmful_count: Tensor
    directions: Tensor

    @classmethod
    def of(cls, a: Tensor, harmful: Tensor, active: Tensor) -> Split:
        """Split g_aux by its coefficients `a`; `harmful` and `active` are masks of directions."""
        squares = a.double().square()
        helpful_square = torch.where(harmful, 0.0, squares).sum()
        harmful_square = torch.where(harmful, squares, 0.0).sum()
        return cls(helpful_square, harmful_square, (active & harmful).sum(), active.sum())


@dataclass(frozen=True)
class Comparison:
    """The numbers of a step from which its report is computed when it is read; float64."""

    p: Tensor
    """V g_prim (k)."""
    square: Tensor
    """‖g_prim‖²."""
    residual: Tensor
    """Norm of the part of g_prim outside of V if this part is one more direction (1), else
    empty.
    """
    active: Tensor
    """Which rows of V are not zero (k)."""
    tasks: Mapping[str, tuple[Tensor, Tensor, Tensor]]
    """For each task, by name, the coefficients of g_aux along all directions, ‖g_aux‖² and ⟨g_prim,
    g_aux⟩.
    """

    def gather(self) -> Gathered:
        """Copy all numbers into one new vector, so that a later step needs a single copy to keep
        what its CUDA graph has written.
        """
        each = [self.p, self.square, self.residual, self.active]
        for numbers in self.tasks.values():
            each.extend(numbers)
        vector = torch.cat([tensor.double().reshape(-1) for tensor in each])
        return Gathered(vector, [tensor.numel() for tensor in each], list(self.tasks))

    def read(self) -> Comparison:
        """Return the numbers; `Gathered` has the same method."""
        return self


@dataclass(frozen=True)
class Gathered:
    """The numbers of a `Comparison` in one vector, which is split when they are read."""

    vector: Tensor
    sizes: list[int]
    """The number of elements of each field, in the order of `Comparison.gather`."""
    names: list[str]
    """The names of the tasks."""

    def read(self) -> Comparison:
        """Split the vector into the numbers that it was made from."""
        p, square, residual, active, *of_tasks = self.vector.split(self.sizes)
        tasks = {}
        for at, name in enumerate(self.names):
            # Three fields for each task; the last two have one element, as `square` has.
            a, auxiliary_square, inner = of_tasks[3 * at : 3 * at + 3]
            tasks[name] = (a, auxiliary_square[0], inner[0])
        return Comparison(p, square[0], residual, active, tasks)


def split_of(numbers: Comparison | Gathered, name: str) -> Split:
    """Compute the split of one task."""
    read = numbers.read()
    a = read.tasks[name][0]
    # The directions are the rows of V and, as the last one, the residual of g_prim if it is one.
    active = torch.cat([read.active.bool(), read.residual > 0])
    return Split.of(a, harmful_mask(a, torch.cat([read.p, read.residual])), active)


def products_of(numbers: Comparison | Gathered, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return ‖g_aux‖², ⟨g_prim, g_aux⟩ and ‖g_prim‖² of one task."""
    read = numbers.read()
    _, square, inner = read.tasks[name]
    return square, inner, read.square


def captured_primary_of(numbers: Comparison | Gathered) -> Tensor:
    """Return the share of ‖g_prim‖² in the span."""
    read = numbers.read()
    share = ratio(read.p.square().sum() + read.residual.square().sum(), read.square)
    if read.residual.numel() == 0:
        return share
    # With the residual the span has all of g_prim, so only rounding can exceed 1.
    return share.clamp(max=1.0)


def effective_rank_of(numbers: Comparison | Gathered) -> Tensor:
    """Return the number of directions in use."""
    return numbers.read().active.sum().long()


@dataclass(frozen=True)
class TaskReport:
    """One auxiliary task compared with the primary task. Norms are of the unweighted mean auxiliary
    gradient.

    Values are computed when they are read, so an unread report costs nothing. `neutral`,
    `captured_auxiliary` and `cosine` need the whole gradient. They are NaN where it never was in
    memory as a whole: for a task whose micro-batches alternate with another task's, and on several
    replicas in steps without a refresh and without judges (see `report_norms` of `Guide`).
    """

    _split: Callable[[], Split]
    _products: Callable[[], tuple[Tensor, Tensor, Tensor]]
    """‖g_aux‖², ⟨g_prim, g_aux⟩ and ‖g_prim‖²."""
    earned: EarnedWeights | None = None
    """With eta="auto": the weights of this step, and the scores that decide later weights."""

    @property
    def _parts(self) -> Split:
        # Not cached: the report of a captured step is read again after every replay.
        return self._split()

    @property
    def neutral(self) -> Tensor:
        """Norm of the neutral part, which is orthogonal to the span."""
        parts = self._parts
        return (self._products()[0] - parts.helpful - parts.harmful).clamp(min=0).sqrt()

    @property
    def helpful(self) -> Tensor:
        """Norm of the helpful part, which lies along directions in which both gradients have the
        same sign.
        """
        return self._parts.helpful.sqrt()

    @property
    def harmful(self) -> Tensor:
        """Norm of the harmful part, which lies along directions in which the two gradients have
        opposite signs.
        """
        return self._parts.harmful.sqrt()

    @property
    def agreement(self) -> Tensor:
        """Share of the directions in which the two gradients do not oppose each other."""
        parts = self._parts
        return ratio(parts.directions - parts.harmful_count, parts.directions)

    @property
    def captured_auxiliary(self) -> Tensor:
        """Share of ‖g_aux‖² inside the span."""
        parts = self._parts
        return ratio(parts.helpful + parts.harmful, self._products()[0])

    @property
    def cosine(self) -> Tensor:
        """Cosine of the two gradients."""
        square, inner, primary = self._products()
        return ratio(inner, square.sqrt() * primary.sqrt())


TASK_VALUES = ("neutral", "helpful", "harmful", "agreement", "captured_auxiliary", "cosine")


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, or 0 where the whole is 0."""
    return torch.where(whole == 0, 0.0, part / whole)


def plain(named: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the tensors as plain numbers by name; waits for the device only once."""
    first, *_ = named.values()
    # (The counters of a guide that has just been loaded move to the device at its next refresh.)
    values = [value.to(first.device, torch.float64) for value in named.values()]
    return dict(zip(named, torch.stack(values).tolist(), strict=True))


@dataclass
class SkipWarning:
    """Warns about refreshes that found NaN or Inf: once for each increase, and only when a report
    is read.
    """

    seen: int = 0

    def restore(self, count: int) -> None:
        """Start the count at refreshes that the user has already been warned about."""
        self.seen = count

    def __call__(self, count: int) -> None:
        """Warn if `count`, the number of such refreshes so far, has grown."""
        if count > self.seen:
            self.seen = count
            warnings.warn(
                f"{count} refreshes found NaN or Inf in the primary losses' gradients and kept the old basis; look for "
                "overflow (lower the loss scale or the learning rate) or broken examples",
                stacklevel=3,
            )


@dataclass(frozen=True, repr=False)
class Report:
    """What happened in one step. `tasks` has the norms, `agreement`, `captured_auxiliary` and
    `cosine` of each auxiliary task.

    The values here cover all tasks. The three norms are roots of summed squares, shares refer to
    summed squares, and `agreement` and `cosine` are means over the tasks. With a single auxiliary
    loss they equal the values of its task.
    """

    _captured: Callable[[], Tensor]
    _effective_rank: Callable[[], Tensor]
    skipped_refreshes: Tensor
    """How many refreshes so far found NaN or Inf and kept the old basis."""
    refreshed: bool
    """Whether this step computed a new basis."""
    tasks: Mapping[str, TaskReport]
    """The report of each auxiliary loss, by its name."""
    _warn: SkipWarning = field(default_factory=SkipWarning, compare=False)

    @property
    def captured_primary(self) -> Tensor:
        """Share of the primary gradient's squared norm inside the span."""
        return self._captured()

    @property
    def effective_rank(self) -> Tensor:
        """The number of directions in use."""
        return self._effective_rank()

    def _all(self, name: str) -> Tensor:
        """One value of every task, as a vector."""
        return torch.stack([getattr(task, name) for task in self.tasks.values()])

    def _root_sum(self, name: str) -> Tensor:
        """The norm of one part over all tasks: the root of the summed squares."""
        values = self._all(name)
        if len(values) == 1:
            return values[0]
        return values.square().sum().sqrt()

    @property
    def neutral(self) -> Tensor:
        """Norm of the neutral part, which is orthogonal to the span."""
        return self._root_sum("neutral")

    @property
    def helpful(self) -> Tensor:
        """Norm of the helpful part, which lies along directions in which both gradients have the
        same sign.
        """
        return self._root_sum("helpful")

    @property
    def harmful(self) -> Tensor:
        """Norm of the harmful part, which lies along directions in which the two gradients have
        opposite signs.
        """
        return self._root_sum("harmful")

    @property
    def agreement(self) -> Tensor:
        """Share of the directions in which the gradients do not oppose each other."""
        return self._all("agreement").mean()

    @property
    def cosine(self) -> Tensor:
        """Cosine of the auxiliary and the primary gradient."""
        return self._all("cosine").mean()

    @property
    def captured_auxiliary(self) -> Tensor:
        """Share of the auxiliary gradients' squared norm inside the span."""
        captured = self._all("captured_auxiliary")
        if len(captured) == 1:
            return captured[0]
        inside = self.helpful.square() + self.harmful.square()
        return ratio(inside, inside + self.neutral.square())

    def __repr__(self) -> str:
        numbers = (f"{name}={value:.4g}" for name, value in self.to_dict().items())
        return f"{type(self).__name__}({', '.join(numbers)})"

    def to_dict(self) -> dict[str, float | int | bool]:
        """Return plain numbers for a logger, with the numbers of named tasks under `name/...`.
        Waits for the device.
        """
        figures = {name: getattr(self, name) for name in TASK_VALUES}
        if len(self.tasks) > 1:
            for task, report in self.tasks.items():
                for name in TASK_VALUES:
                    figures[f"{task}/{name}"] = getattr(report, name)
        figures["captured_primary"] = self.captured_primary
        figures["effective_rank"] = self.effective_rank
        figures["skipped_refreshes"] = self.skipped_refreshes
        # All tensors are read at once. The values of the whole step move to the end of the dict.
        values: dict[str, float | int | bool] = {**plain(figures)}
        captured = values.pop("captured_primary")
        rank = int(values.pop("effective_rank"))
        skipped = int(values.pop("skipped_refreshes"))
        self._warn(skipped)
        for task, report in self.tasks.items():
            prefix = f"{task}/"
            if len(self.tasks) == 1:
                prefix = ""
            if report.earned is not None:
                for name, value in report.earned.to_dict().items():
                    values[f"{prefix}{name}"] = value
        values["captured_primary"] = captured
        values["effective_rank"] = rank
        values["refreshed"] = self.refreshed
        values["skipped_refreshes"] = skipped
        return values
