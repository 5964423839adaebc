"""What a step tells: tensors on the device, read only when somebody asks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class TaskReport:
    """One auxiliary task as the primary task sees it. Norms are of the unweighted mean auxiliary gradient.

    `neutral`, `helpful`, `harmful`: norms of the three parts. `agreement`: share of the directions in which the two
    gradients do not point apart. `captured_auxiliary`: share of ‖g_aux‖² inside the span. `cosine`: of the two
    gradients. The values that need the whole gradient are NaN where it was never held at once: for a task that was
    interrupted by another one in an accumulation window.
    """

    neutral: Tensor
    helpful: Tensor
    harmful: Tensor
    agreement: Tensor
    captured_auxiliary: Tensor
    cosine: Tensor


def describe(
    a: Tensor, harmful: Tensor, active: Tensor | None, square: Tensor, inner: Tensor, primary: Tensor
) -> TaskReport:
    """From k-vectors and three inner products: ‖g_aux‖², ⟨g_prim, g_aux⟩ and ‖g_prim‖²."""
    squares = a.double().square()
    inside = squares.sum()
    counted = torch.ones_like(harmful) if active is None else active
    return TaskReport(
        neutral=(square - inside).clamp(min=0).sqrt(),
        helpful=torch.where(harmful, 0.0, squares).sum().sqrt(),
        harmful=torch.where(harmful, squares, 0.0).sum().sqrt(),
        agreement=ratio((counted & ~harmful).sum(), counted.sum()),
        captured_auxiliary=ratio(inside, square),
        cosine=ratio(inner, square.sqrt() * primary.sqrt()),
    )


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole, and 0 of nothing."""
    return torch.where(whole == 0, 0.0, part / whole)


@dataclass
class SkipWarning:
    """Warns of refreshes that met NaN or Inf: once for each increase, and only when a report is read."""

    seen: int = 0

    def __call__(self, count: int) -> None:
        if count > self.seen:
            self.seen = count
            warnings.warn(
                f"{count} refreshes met NaN or Inf in the primary losses' gradients and kept the old basis; look for "
                "overflow (lower the loss scale or the learning rate) or broken examples",
                stacklevel=3,
            )


@dataclass(frozen=True)
class Report:
    """What happened in one step. `tasks` has the same by auxiliary task.

    The values here are over all tasks: root of the summed squares for the three norms, shares of summed squares,
    the mean of agreement and cosine. For a single auxiliary loss they are that task's own.
    """

    captured_primary: Tensor
    effective_rank: Tensor
    skipped_refreshes: Tensor
    refreshed: bool
    tasks: Mapping[str, TaskReport]
    _warn: SkipWarning = field(default_factory=SkipWarning, repr=False, compare=False)

    def _all(self, name: str) -> Tensor:
        return torch.stack([getattr(task, name) for task in self.tasks.values()])

    def _root_sum(self, name: str) -> Tensor:
        values = self._all(name)
        return values[0] if len(values) == 1 else values.square().sum().sqrt()

    @property
    def neutral(self) -> Tensor:
        return self._root_sum("neutral")

    @property
    def helpful(self) -> Tensor:
        return self._root_sum("helpful")

    @property
    def harmful(self) -> Tensor:
        return self._root_sum("harmful")

    @property
    def agreement(self) -> Tensor:
        return self._all("agreement").mean()

    @property
    def cosine(self) -> Tensor:
        return self._all("cosine").mean()

    @property
    def captured_auxiliary(self) -> Tensor:
        inside = self.helpful.square() + self.harmful.square()
        return (
            self.tasks[next(iter(self.tasks))].captured_auxiliary
            if len(self.tasks) == 1
            else ratio(inside, inside + self.neutral.square())
        )

    def to_dict(self) -> dict[str, float | int | bool]:
        """Plain numbers for a logger; named tasks under `name/...`. This waits for the device."""
        count = int(self.skipped_refreshes)
        self._warn(count)
        names = [entry.name for entry in fields(TaskReport)]
        values: dict[str, float | int | bool] = {name: float(getattr(self, name)) for name in names}
        if len(self.tasks) > 1:
            for task, report in self.tasks.items():
                values |= {f"{task}/{name}": float(getattr(report, name)) for name in names}
        return values | {
            "captured_primary": float(self.captured_primary),
            "effective_rank": int(self.effective_rank),
            "refreshed": self.refreshed,
            "skipped_refreshes": count,
        }
