"""Choose one candidate carefully: labels are few, so a small lead says little."""

from __future__ import annotations

from collections.abc import Sequence

from attittud_lab.portfolio.intervals import Intervals
from attittud_lab.portfolio.standing import Standing, rank, ranking_score, scores_of, usable

TIE = 0.5
"""A lead of fewer standard errors than this says nothing; chosen on development pairs."""


def choose_single(standings: Sequence[Standing], intervals: Intervals) -> Standing:
    """Return the simplest candidate whose score is within half a standard error of the best one's.

    `standings` come in the order from simple to complex. Candidates without auxiliary data are
    simpler than all others, and simple learners are simpler than networks.
    """
    best = max(usable(standings), key=rank)
    ties = []
    for standing in usable(standings):
        lead = ranking_score(best) - ranking_score(standing)
        error = intervals.error(scores_of(best), scores_of(standing))
        if standing is best or lead <= TIE * error:  # never true where one of the two is NaN
            ties.append(standing)
    # `min` returns the first of equally simple candidates.
    return min(ties, key=lambda standing: (not standing.alone, not standing.simple))
