"""What the paper says about its numbers, and whether ours bear it out.

A section declares its claims and calls `claim_table`. The page counts the outcomes of all claims.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import pearsonr

from attittud_lab.statistics import ALPHA, ROUNDING, Difference, holm

from .rows import Row
from .tables import difference_cells, table

OPPOSITE = "does not hold: the opposite is significant"


@dataclass(frozen=True)
class Claim:
    """`first` is better than `second`, both names of rows. With `flat` they do not differ."""

    text: str
    first: str
    second: str
    points: float | None = None
    """The paper's difference, where it prints one."""
    flat: bool = False


@dataclass(frozen=True)
class Judgement:
    """A claim with our paired difference, whose p-value is corrected, and what follows from it."""

    claim: Claim
    difference: Difference
    outcome: str


def judged(claims: Sequence[Claim], rows: Mapping[str, Row]) -> list[Judgement]:
    """Judge every claim of a table. p-values are Holm-corrected over all of them."""
    differences = [rows[claim.first].minus(rows[claim.second]) for claim in claims]
    p_values = holm([difference.p for difference in differences])
    judgements = []
    for claim, difference, p in zip(claims, differences, p_values, strict=True):
        corrected = replace(difference, p=p)
        judgements.append(Judgement(claim, corrected, outcome(corrected, flat=claim.flat)))
    return judgements


def outcome(difference: Difference, *, flat: bool = False) -> str:
    """What a difference says about a claim, at p < 0.05."""
    if math.isnan(difference.p):
        return "too few seeds"
    is_significant = difference.p < ALPHA
    if flat and is_significant:
        return "does not hold: the difference is significant"
    if flat:
        return "not significant, as the paper has it"
    if not is_significant:
        return "not significant"
    return "holds" if difference.mean > 0 else OPPOSITE


def spread_falls(rows: Mapping[int, Row]) -> tuple[int, str, str]:
    """Judge whether the standard deviation over seeds is smaller in the last row than in the first.

    Both rows have the same seeds, so the test is Pitman and Morgan's for paired values: where two
    variances are equal, sum and difference are uncorrelated. Returns how many seeds both rows have,
    the outcome and our figures in words.
    """
    begin, *_, end = rows
    first = rows[begin].test
    last = rows[end].test
    seeds = sorted(first.keys() & last.keys())
    a = np.array(list(map(first.__getitem__, seeds)))
    b = np.array(list(map(last.__getitem__, seeds)))
    p = 1.0  # of values that are all the same, or differ by the same
    if min(np.std(a + b), np.std(a - b)) > ROUNDING:
        p = float(pearsonr(a + b, a - b)[1])
    outcome = "not significant"
    if p < ALPHA:
        outcome = "holds" if np.std(b) < np.std(a) else OPPOSITE
    figures = (
        f"std {100 * np.std(a, ddof=1):.1f} at {begin}, {100 * np.std(b, ddof=1):.1f} at {end}; "
        f"Pitman-Morgan test over {len(seeds)} common seeds, p = {p:.3f}"
    )
    return len(seeds), outcome, figures


def against_multitask(
    judgements: Iterable[Judgement], ours: Collection[str]
) -> tuple[list[float], int, int]:
    """How many points our rows are better than multitask, and how many of them are significantly
    better, and worse.
    """
    points = []
    better = 0
    worse = 0
    for judgement in judgements:
        if judgement.claim.first in ours and judgement.claim.second == "multitask":
            points.append(100 * judgement.difference.mean)
            better += judgement.outcome.startswith("holds")
            worse += judgement.outcome.startswith("does not hold")
    return points, better, worse


def leads(judgements: Iterable[Judgement], ours: Collection[str]) -> tuple[list[float], int]:
    """The points by which our rows lead others in the paper, and how many of these leads lie above
    our intervals.
    """
    points = []
    outside = 0
    for judgement in judgements:
        claim = judgement.claim
        if claim.first in ours and claim.points is not None:
            points.append(claim.points)
            outside += 100 * judgement.difference.high < claim.points
    return points, outside


def so_many(count: int) -> str:
    """A number of rows as the subject of a sentence, with its verb."""
    return f"{count or 'none'} {'is' if count < 2 else 'are'}"


def claim_table(claims: Sequence[Claim], rows: Mapping[str, Row]) -> str:
    lines = []
    for judgement in judged(claims, rows):
        claim = judgement.claim
        paper = "" if claim.points is None else f"{claim.points:+.1f}"
        cells = difference_cells(judgement.difference)
        lines.append([claim.text, paper, *cells, judgement.outcome])
    return table(["claim", "paper", "ours, points", "95 %", "n", "p", "outcome"], lines)
