"""Statistics for few seeds: means with intervals, paired differences, and how many seeds would be enough.

A seed is one draw of initialisation and order of examples; strategies of one seed share both, so differences are taken
seed by seed. The distributions are scipy's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from scipy.special import nctdtr, stdtr, stdtrit

LEVEL, POWER = 0.95, 0.8
ALPHA = 1 - LEVEL
FEWEST = 3
"""The fewest values for an interval. A t-interval of two seeds is 25 standard errors wide: the values are shown instead."""
ROUNDING = 1e-6  # relative; figures may have been computed in single precision
MOST_SEEDS = 1000  # more are not worth counting

Range = tuple[float, float]
ANYTHING: Range = (-math.inf, math.inf)
PROPORTION: Range = (0.0, 1.0)  # accuracy, AUC and F1


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (ddof = 1, NaN for one value) and 95 % interval (NaN for fewer than `FEWEST` values)."""

    n: int
    mean: float
    std: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Summary):
    """A summary of differences taken seed by seed, and the two-sided p-value of "no difference"; NaN where the interval is."""

    p: float


def summarise(values: Sequence[float], within: Range = ANYTHING, fewest: int = FEWEST) -> Summary:
    """Summarise at least one value. The interval is the t-interval of the mean, cut to `within`, where all values lie.

    The true mean cannot lie in the part that is cut off, so the coverage stays the same and the interval agrees with the
    t-test. Binomial intervals (Wilson, Clopper-Pearson) describe other test examples, but the question is about other
    seeds. An interval on the logit scale would contradict the paired test, and does not exist where all values are 1.
    """
    n, mean = len(values), fmean(values)
    std = stdev(values) if n > 1 else math.nan
    if n < fewest:
        return Summary(n, mean, std, math.nan, math.nan)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * std / math.sqrt(n)
    return Summary(n, mean, std, max(within[0], mean - half), min(within[1], mean + half))


def paired(first: Sequence[float], second: Sequence[float], within: Range = ANYTHING) -> Difference:
    """first - second, pair by pair; `within` is the range of the single values.

    The p-value comes from the paired t-test. Coarse figures of a small test set can make all differences the same; the
    t-test would then be sure after few seeds, so the exact sign test is used instead.
    """
    low, high = within
    found = summarise([a - b for a, b in zip(first, second, strict=True)], (low - high, high - low))
    p, rounding = math.nan, ROUNDING * max(map(abs, [*first, *second]))
    if found.n >= FEWEST and found.std <= rounding:
        p = 1.0 if abs(found.mean) <= rounding else 2 * 0.5**found.n
    elif found.n >= FEWEST:
        t = found.mean / (found.std / math.sqrt(found.n))
        p = 2 * float(stdtr(found.n - 1, -abs(t)))
    return Difference(**vars(found), p=p)


def differences(
    rows: Mapping[str, Mapping[int, float]], reference: str, within: Range = ANYTHING
) -> dict[str, Difference]:
    """Subtract `reference` from every other row, over the seeds that both have; p-values are Holm-corrected."""
    base, found = rows[reference], {}
    for label, values in rows.items():
        seeds = [seed for seed in base if seed in values]
        if label != reference and seeds:
            found[label] = paired([values[s] for s in seeds], [base[s] for s in seeds], within)
    adjusted = holm([difference.p for difference in found.values()])
    return {label: replace(difference, p=p) for (label, difference), p in zip(found.items(), adjusted, strict=True)}


def mark(mean: float, p: float | None) -> Literal["▲", "▼", "=", "?"]:
    """Return ▲ (shown to be better), ▼ (shown to be worse), = (no difference shown) or ? (too few seeds for a test).

    `p` is the corrected p-value of `differences`, so that a mark never claims more than the p-value in its row. The interval
    of the row may claim more, since it describes this row alone.
    """
    if p is None or math.isnan(p):
        return "?"
    return "=" if p >= ALPHA else "▲" if mean > 0 else "▼"


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment for several rows at once; NaN (nothing was tested) does not count as a test."""
    order = sorted((p, i) for i, p in enumerate(ps) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(ps), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[i] = largest
    return adjusted


def seeds_needed(std: float, effect: float, *, tests: int = 1) -> int | None:
    """Estimate the seeds with which a paired t-test finds a true difference `effect` in four of five cases.

    `std` is the deviation of the paired differences. `tests` are made at once, so each has the level 0.05 / tests (the
    first step of Holm). None where more than `MOST_SEEDS` are needed.
    """
    alpha = ALPHA / tests
    if std <= ROUNDING * abs(effect):
        return math.ceil(1 - math.log2(alpha))  # until the sign test of `paired` can reach the level

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
