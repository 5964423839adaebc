"""Eta without a grid: every part of an auxiliary gradient earns its weight before *judges*.

Judges are primary examples that neither build the basis nor train the model in the step in which they are heard. The score
of a part is its cosine with their mean gradient g_judge, so it says how much a small step along that part would serve
examples that had no say in it. All scores come from k-vectors and inner products (V g_judge, ⟨g_judge, g_aux⟩, norms);
nothing is as long as the model but g_judge itself.

A step uses the weights that earlier steps have earned, so no weight depends on the batch that it is applied to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attittud.decompose import Weights

SCORED = ("neutral", "helpful", "harmful", "auxiliary", "primary")
"""What has a score: the three parts, the auxiliary gradient as a whole, and, to compare with, the primary gradient."""
MEMORY = 0.95
"""How much of the running scores is kept when the judges are heard again."""
CAUTION = 3.0
"""A standard error that comes from n hearings is taken 1 + CAUTION / (n - 1) times: a few may agree by chance."""
DISTINCT = 4.0
"""Standard deviations by which a part must differ from its whole gradient to be believed half of what it says itself."""
DOUBTED, CERTAIN = 1.0, 3.0
"""Standard errors above 0 up to which a part does not count, and from which it counts in full."""


@dataclass(frozen=True)
class Verdict:
    """What an auxiliary task has earned."""

    weights: Weights
    """Those of this step, earned in earlier ones."""
    score: Tensor
    """Running mean of the cosines of what is `SCORED`, this step's included."""
    error: Tensor
    """Standard error of those means."""
    skipped: Tensor
    """Hearings so far that met NaN or Inf, or judges without a gradient, and changed nothing."""

    def to_dict(self) -> dict[str, float | int]:
        """This waits for the device."""
        parts = SCORED[:3]
        return {
            **{f"weight_{name}": float(getattr(self.weights, name)) for name in parts},
            **{f"score_{name}": value for name, value in zip(SCORED, self.score.tolist(), strict=True)},
            "error_auxiliary": float(self.error[3]),
            "skipped_hearings": int(self.skipped),
        }


@dataclass(frozen=True)
class Meeting:
    """One auxiliary task before the judges, in inner products of a step; float64.

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
        """`dots` and `squares` from the coefficients of g_aux and of g_judge in the basis."""
        both = torch.stack([a * judges, a.square()])
        split = torch.stack([torch.where(harmful, 0.0, both).sum(1), torch.where(harmful, both, 0.0).sum(1)], dim=1)
        return split[0], split[1]

    def cosines(self, primary_inner: Tensor, primary_square: Tensor, judges_square: Tensor, tolerance: float) -> Tensor:
        """Cosines of what is `SCORED` with the judges' gradient; NaN where that is zero or anything is not finite.

        A part whose squared norm is below `tolerance` times that of its gradient is rounding and scores 0.
        """
        dots = [self.inner - self.dots.sum(), *self.dots, self.inner, primary_inner]
        squares = torch.stack([self.square - self.squares.sum(), *self.squares, self.square, primary_square])
        whole = torch.stack([*[self.square] * 4, primary_square])
        found = torch.stack(dots) / (squares.clamp(min=0).sqrt() * judges_square.sqrt())
        # A zero part is none. A zero judge is none either, but says nothing about the parts.
        nothing = (squares <= tolerance * whole) & (judges_square > 0)
        return torch.where(nothing, torch.where(torch.isfinite(whole), 0.0, torch.nan), found).clamp(-1, 1)


def earned(score: Tensor, spread: Tensor, error: Tensor) -> Tensor:
    """Weights of the three parts, from mean, standard deviation and standard error of the scores of what is `SCORED`.

    A part is believed to be what the whole auxiliary gradient is, unless its own score clearly differs. It counts as far as
    it is sure that it serves the judges at all.
    """
    own, whole = score[:3], score[3]
    tiny = torch.finfo(score.dtype).tiny
    distance = (own - whole).square()
    doubt = DISTINCT**2 * (spread[:3].square() + spread[3].square())
    believed = whole + distance / (distance + doubt).clamp(min=tiny) * (own - whole)
    weights = (believed - DOUBTED * error[3]) / ((CERTAIN - DOUBTED) * error[3]).clamp(min=tiny)
    return torch.where(torch.isfinite(error[3]), weights.clamp(0, 1), 0.0)


def rounding(dtype: torch.dtype) -> float:
    """‖part‖²/‖g_aux‖² below this is rounding: k-vectors are computed in the type of the gradients."""
    return 64 * torch.finfo(dtype).eps


class Record:
    """What the judges have said of one auxiliary task so far.

    On the device, and always at the same place: a captured CUDA graph may refer to it.
    """

    def __init__(self, device: torch.device) -> None:
        self.moments = torch.zeros(3, len(SCORED), dtype=torch.float64, device=device)
        """Decaying sums of the cosines, of their squares, and of ones."""
        self.weights = torch.zeros(3, dtype=torch.float64, device=device)
        """Nothing counts before it has earned it."""
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        """Hearings that met NaN or Inf, or judges without a gradient."""

    @property
    def score(self) -> Tensor:
        """Running means of the cosines of what is `SCORED`; 0 before the first."""
        return self.moments[0] / self.moments[2].clamp(min=1 - MEMORY)

    @property
    def hearings(self) -> Tensor:
        """How many equally weighted hearings the running mean is worth."""
        mass = self.moments[2]
        squares = (1 - MEMORY) / (1 + MEMORY) * (1 - (1 - mass).square())
        return mass.square() / squares.clamp(min=torch.finfo(mass.dtype).tiny)

    @property
    def spread(self) -> Tensor:
        """Standard deviation of the cosines from hearing to hearing; infinite after a single one."""
        variance = (self.moments[1] / self.moments[2].clamp(min=1 - MEMORY) - self.score.square()).clamp(min=0)
        others = self.hearings - 1
        return torch.where(others > 0.5, variance * self.hearings / others.clamp(min=0.5), torch.inf).sqrt()

    @property
    def error(self) -> Tensor:
        """Standard error of the running means, larger than it looks while there were few hearings."""
        caution = 1 + CAUTION / (self.hearings - 1).clamp(min=0.5)
        return self.spread / self.hearings.clamp(min=1).sqrt() * caution

    def add(self, found: Tensor) -> None:
        """Take in one hearing; where it is not finite all stays as it was."""
        finite = torch.isfinite(found).all()
        new = MEMORY * self.moments + (1 - MEMORY) * torch.stack([found, found.square(), torch.ones_like(found)])
        self.moments.copy_(torch.where(finite, new, self.moments))
        self.weights.copy_(torch.where(finite, earned(self.score, self.spread, self.error), self.weights))
        self.skipped += ~finite

    def state(self) -> dict[str, Any]:
        return {
            "moments": self.moments.tolist(),
            "weights": self.weights.tolist(),
            "skipped": int(self.skipped),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.moments.copy_(self.moments.new_tensor(state["moments"]))
        self.weights.copy_(self.weights.new_tensor(state["weights"]))
        self.skipped.fill_(state["skipped"])
