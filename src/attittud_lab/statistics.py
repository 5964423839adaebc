"""What can be said from a few seeds: means with intervals, paired differences, and how many seeds would say more.

A seed is one draw of initialisation and order of examples; strategies of one seed share both, so differences are taken
seed by seed. The distributions are scipy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

LEVEL = 0.95
ALPHA = 1 - LEVEL
POWER = 0.8
ROUNDING = 1e-6
"""Relative; figures may have been computed in single precision."""
MOST_SEEDS = 1000
"""More are not worth counting."""


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (ddof = 1) and 95 % t-interval; all but the mean are NaN for a single value."""

    n: int
    mean: float
    std: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Summary):
    """The same for differences seed by seed, with the two-sided p-value of "there is none"."""

    p: float


def summarise(values: Sequence[float]) -> Summary:
    """Of at least one value."""
    n, mean = len(values), fmean(values)
    if n < 2:
        return Summary(n, mean, math.nan, math.nan, math.nan)
    from scipy.special import stdtrit

    std = stdev(values)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * std / math.sqrt(n)
    return Summary(n, mean, std, mean - half, mean + half)


def paired(first: Sequence[float], second: Sequence[float]) -> Difference:
    """first - second, pair by pair.

    The p-value is that of the paired t-test. Where all differences are the same, as coarse figures of a small test set
    can be, the t-test would be sure after two seeds; the exact sign test is then used instead.
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    found = summarise(differences)
    return Difference(**vars(found), p=_p(found, ROUNDING * max(map(abs, [*first, *second]))))


def _p(found: Summary, rounding: float) -> float:
    if found.n < 2:
        return math.nan
    if found.std <= rounding:
        return 1.0 if abs(found.mean) <= rounding else 2 * 0.5**found.n
    from scipy.special import stdtr

    t = found.mean / (found.std / math.sqrt(found.n))
    return 2 * float(stdtr(found.n - 1, -abs(t)))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment for looking at several rows at once; NaN (nothing was tested) stays out of it."""
    order = sorted((p, i) for i, p in enumerate(ps) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(ps), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[i] = largest
    return adjusted


def seeds_needed(std: float, effect: float, *, tests: int = 1) -> int | None:
    """Seeds with which a paired t-test sees a true difference `effect` in four of five cases.

    `std` is that of the paired differences; `tests` are made at once, so each is held to 0.05 / tests (the first step
    of Holm). None where more than `MOST_SEEDS` are needed.
    """
    from scipy.special import nctdtr, stdtrit

    alpha = ALPHA / tests
    if std <= ROUNDING * abs(effect):
        return math.ceil(1 - math.log2(alpha))  # until the sign test, see `paired`, can reach it

    def power(n: int) -> float:
        critical, shift = float(stdtrit(n - 1, 1 - alpha / 2)), abs(effect) / std * math.sqrt(n)
        # The other tail, a significant difference of the wrong sign, is no success.
        return 1 - float(nctdtr(n - 1, shift, critical))

    low, high = 1, 2
    while power(high) < POWER:
        if high >= MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


MOST_BLOCKS = 20


def batch_means(values: Sequence[float], shortest: int) -> Summary:
    """Mean of a series whose neighbours are alike, with the interval of the means of its blocks.

    `shortest` is the length from which on blocks are taken to be independent. At least two blocks are made whatever it
    is, with the wide interval that two values deserve. `std` is that of the block means.
    """
    count = max(2, min(MOST_BLOCKS, len(values) // shortest))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    blocks = summarise([fmean(values[a:b]) for a, b in pairwise(edges)])
    mean = fmean(values)  # blocks may differ in length by one
    return Summary(count, mean, blocks.std, mean + blocks.low - blocks.mean, mean + blocks.high - blocks.mean)


@dataclass(frozen=True)
class SignTest:
    """How often two signs are the same, and the one-sided p-value of "no more often than by chance"."""

    agreeing: int
    n: int
    clusters: int
    effective_n: float
    """Independent pairs that would scatter as much: signs of one cluster may all turn together."""
    chance: float
    p: float

    @property
    def share(self) -> float:
        return self.agreeing / self.n if self.n else math.nan


def sign_test(agreeing: Sequence[int], compared: Sequence[int], *, chance: float = 0.5) -> SignTest:
    """Binomial test of pairs that come in clusters, given the counts of each.

    Pairs within a cluster need not be independent. Where the counts scatter more than binomial ones, n and the count are
    reduced by that factor (the design effect of Rao and Scott), which is never taken to be below 1.
    """
    clusters = [(a, n) for a, n in zip(agreeing, compared, strict=True) if n > 0]
    total, n = sum(a for a, _ in clusters), sum(n for _, n in clusters)
    if n == 0:
        return SignTest(0, 0, 0, 0.0, chance, 1.0)
    from scipy.special import betainc

    share, effect = total / n, 1.0
    if len(clusters) > 1 and 0 < share < 1:
        scatter = sum((a - size * share) ** 2 for a, size in clusters) * len(clusters) / (len(clusters) - 1)
        effect = max(1.0, scatter / (n * share * (1 - share)))
    worth, hits = n / effect, total / effect
    # P(X >= hits) of a binomial X, which is defined between whole numbers too.
    p = 1.0 if hits == 0 else float(betainc(hits, worth - hits + 1, chance))
    return SignTest(total, n, len(clusters), worth, chance, p)
