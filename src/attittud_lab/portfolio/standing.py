"""A candidate of a portfolio and its out-of-fold results, whatever made them: a simple learner or a
network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attittud_lab.portfolio.candidates import PortfolioCandidate
from attittud_lab.portfolio.choose import Curve


@dataclass(frozen=True)
class Standing:
    """A candidate, and what it predicts for held-out examples."""

    label: str
    settings: dict[str, Any]
    """What defines the candidate, as it stands in leaderboard.json."""
    alone: bool
    """Whether it ignores the auxiliary data."""
    network: PortfolioCandidate | None = None
    """The strategy, if the candidate trains networks."""
    steps: int = 0
    """Steps of each of its runs."""
    seconds: float = 0.0
    """Training time of all its runs."""
    diverged: str | None = None
    outputs: Tensor | None = None
    """Out-of-fold scores at the best look, n x classes."""
    curve: Curve | None = None
    """None where it diverged. A simple learner has a single look."""
    best: dict[str, Any] = field(default_factory=dict)
    """The number, the phase and the step of the best look of networks."""
    for_comparison: bool = False
    """Whether the job did not ask for it: it is only what a user would have used instead, and never
    a part of the model.
    """

    @property
    def simple(self) -> bool:
        return self.network is None

    @property
    def kind(self) -> str:
        """What leaderboard.json calls it."""
        if self.simple:
            return "simple"
        return "network"


def scores_of(standing: Standing) -> Tensor:
    """Return the out-of-fold scores of a candidate that did not diverge."""
    assert standing.outputs is not None
    return standing.outputs


def rank(standing: Standing) -> tuple[bool, tuple[float, float]]:
    """Order candidates, larger is better: not diverged, then score and log-loss."""
    if standing.curve is None:
        return (False, (-math.inf, 0.0))
    return (True, standing.curve.value)


def ranking_score(standing: Standing) -> float:
    """Return the smoothed score that ranks a candidate which did not diverge."""
    assert standing.curve is not None
    score, _ = standing.curve.value
    return score


def usable(standings: Iterable[Standing]) -> list[Standing]:
    """Return the candidates that did not diverge."""
    return [standing for standing in standings if standing.curve is not None]


def taking_part(standings: Iterable[Standing]) -> list[Standing]:
    """Return the candidates that the model may be made of."""
    return [standing for standing in usable(standings) if not standing.for_comparison]


def best_alone(standings: Iterable[Standing]) -> Standing | None:
    """Return the best candidate that ignores the auxiliary data: what the others are compared
    with.
    """
    alone = [standing for standing in taking_part(standings) if standing.alone]
    return max(alone, key=rank, default=None)


def with_auxiliary(standings: Iterable[Standing]) -> list[Standing]:
    """Return the candidates that use auxiliary data and did not diverge."""
    return [standing for standing in usable(standings) if not standing.alone]


def best_with_auxiliary(standings: Iterable[Standing]) -> Standing | None:
    """Return the best candidate that uses auxiliary data."""
    return max(with_auxiliary(standings), key=rank, default=None)


def without_us(standings: Iterable[Standing]) -> Standing | None:
    """Return what a user would have used instead: the best simple learner on the primary labels
    alone.
    """
    simple = [standing for standing in usable(standings) if standing.simple and standing.alone]
    return max(simple, key=rank, default=None)
