"""What a step is given of its tasks, what it holds of them, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from attittud._checks import AnyEta
from attittud.autograd.layout import Layout
from attittud.decompose import Weights
from attittud.eta import Eta
from attittud.report import TaskReport

Losses = Callable[[], Tensor]
"""Computes losses when they are needed."""


@dataclass(frozen=True)
class Given:
    """An auxiliary loss, with what was set for its task."""

    loss: Tensor
    eta: AnyEta
    weight: float


@dataclass
class Task:
    """One auxiliary task in this step."""

    eta: Eta | Weights
    weight: float
    flat: Tensor | None = None
    """Its gradient over the shared parameters, until it is folded into the common sum."""
    a: Tensor | None = None
    """V g_aux."""
    square: Tensor | None = None
    """‖g_aux‖²; None where the whole gradient was never held at once."""
    inner: Tensor | None = None
    """⟨g_prim, g_aux⟩, or None."""
    judged: Tensor | None = None
    """⟨g_judge, g_aux⟩, or None."""
    whole: bool = True
    """`flat` is over the examples of all workers."""
    primary_calls: int = 0
    """How many there were when it was measured."""
    waiting: dict[int, Tensor] | None = None
    """Its gradients before the shared parameters are known: auxiliary came before primary in a refresh."""


@dataclass
class Rest:
    """Gradients of parameters that are not decomposed."""

    primary: dict[int, Tensor] = field(default_factory=dict)
    auxiliary: dict[int, Tensor] = field(default_factory=dict)


def add_to(sums: dict[int, Tensor], key: int, gradient: Tensor) -> None:
    sums[key] = gradient if key not in sums else sums[key] + gradient


@dataclass(frozen=True)
class Ahead:
    """A task's gradients that were computed before it was known which parameters are shared."""

    layout: Layout
    """The guess: as in the step before."""
    flat: Tensor
    found: dict[int, Tensor]
    """By identity; those of the layout are in `flat`."""

    def over(self, layout: Layout) -> tuple[dict[int, Tensor], Tensor | None]:
        """Gradients by identity, and the vector that those of `layout` are in, if they are in one."""
        if layout is self.layout:
            return self.found, self.flat
        views = self.layout.by_identity(self.flat)
        return self.found | {key: view for key, view in views.items() if key in self.found}, None


@dataclass(frozen=True)
class Judges:
    """V g_judge, ‖g_judge‖² and ⟨g_judge, g_prim⟩."""

    rows: Tensor
    square: Tensor
    primary: Tensor


@dataclass(frozen=True)
class Outcome:
    """The update over the shared parameters, what each task looked like, and the captured share of g_prim."""

    update: Tensor
    tasks: dict[str, TaskReport]
    captured_primary: Tensor
    cosines: dict[str, Tensor]
    """Of each task's parts with the judges' gradient, where it was taken in."""
