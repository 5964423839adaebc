"""Choose one candidate carefully: labels are few, so a small lead says little."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attittud_lab.portfolio.intervals import Intervals
from attittud_lab.portfolio.standing import Standing, rank, scores_of, usable

TIE = 0.5
"""A lead of fewer standard errors than this says nothing; chosen on development pairs."""


def choose_single(standings: Sequence[Standing], intervals: Intervals) -> Standing:
    """Return the simplest candidate whose score is within half a standard error of the best one's.

    `standings` come in the order from simple to complex. Candidates without auxiliary data are
    simpler than all others, and simple learners are simpler than networks.
    """
    best = max(usable(standings), key=rank)
    ties = [best]
    for standing in usable(standings):
        if standing is not best and _is_tie(standing, best, intervals):
            ties.append(standing)
    order = {id(standing): number for number, standing in enumerate(standings)}
    return min(ties, key=lambda s: (not s.alone, not s.simple, order[id(s)]))


def _is_tie(standing: Standing, best: Standing, intervals: Intervals) -> bool:
    """Whether a candidate is behind the best one by at most `TIE` standard errors of the
    difference.
    """
    lead = rank(best)[1][0] - rank(standing)[1][0]
    error = intervals.error(scores_of(best), scores_of(standing))
    if math.isnan(lead) or math.isnan(error):
        return False
    return lead <= TIE * error
