"""Statistics for few seeds: means with intervals, paired differences, how many seeds are enough.

A seed is one draw of initialisation and order of examples. Strategies of one seed share both, so
differences are taken seed by seed. The distributions are scipy's. Comparisons, the portfolio and
the experiments use these functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from scipy.special import betaincinv, nctdtr, stdtr, stdtrit

LEVEL = 0.95
POWER = 0.8
ALPHA = 1 - LEVEL
FEWEST = 3
"""The fewest values for an interval.

A t-interval of two seeds is 25 standard errors wide, so the values are shown instead.
"""
ROUNDING = 1e-6  # relative; figures may have been computed in single precision
MOST_SEEDS = 1000  # more are not worth counting

Range = tuple[float, float]
ANYTHING: Range = (-math.inf, math.inf)
PROPORTION: Range = (0.0, 1.0)  # accuracy, AUC and F1


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation and 95 % interval of n values.

    The standard deviation has ddof = 1 and is NaN for one value. The ends of the interval are NaN
    for fewer than `FEWEST` values.
    """

    n: int
    mean: float
    std: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Summary):
    """A summary of differences taken seed by seed, with the two-sided p-value of "no difference".

    The p-value is NaN where the interval is.
    """

    p: float


def summarise(values: Sequence[float], within: Range = ANYTHING) -> Summary:
    """Summarise at least one value.

    The interval is the t-interval of the mean, mean ± t(n - 1) std / √n, cut to `within`, where all
    values lie. The true mean cannot lie in the part that is cut off, so the coverage stays the same
    and the interval agrees with the t-test.

    Binomial intervals (Wilson, Clopper-Pearson) describe other test examples, but the question is
    about other seeds. An interval on the logit scale would contradict the paired test, and does not
    exist where all values are 1.
    """
    n = len(values)
    mean = fmean(values)
    std = math.nan
    if n > 1:
        std = stdev(values)
    if n < FEWEST:
        return Summary(n, mean, std, math.nan, math.nan)
    quantile = float(stdtrit(n - 1, (1 + LEVEL) / 2))
    half = quantile * std / math.sqrt(n)
    low, high = within
    return Summary(n, mean, std, max(low, mean - half), min(high, mean + half))


def share_interval(hits: int, n: int) -> Range:
    """Return the 95 % interval of Clopper and Pearson for a share: `hits` of n examples.

    Its ends are quantiles of Beta(hits, n − hits + 1) and Beta(hits + 1, n − hits); without hits it
    begins at 0, and without misses it ends at 1.
    """
    tail = (1 - LEVEL) / 2
    low = 0.0
    high = 1.0
    if hits > 0:
        low = float(betaincinv(hits, n - hits + 1, tail))
    if hits < n:
        high = float(betaincinv(hits + 1, n - hits, 1 - tail))
    return low, high


def paired(first: Sequence[float], second: Sequence[float], within: Range = ANYTHING) -> Difference:
    """Summarise first - second, pair by pair; `within` is the range of the single values, not of
    their differences.

    The p-value comes from the paired t-test. Coarse figures of a small test set can make all
    differences the same. The t-test would then be sure after few seeds, so the exact sign test is
    used instead: p = 2 / 2ⁿ.
    """
    low, high = within
    pair_differences = [a - b for a, b in zip(first, second, strict=True)]
    summary = summarise(pair_differences, (low - high, high - low))
    rounding = ROUNDING * max(map(abs, [*first, *second]))
    n = summary.n
    if n < FEWEST:
        p = math.nan
    elif summary.std > rounding:
        t = summary.mean / (summary.std / math.sqrt(n))
        p = 2 * float(stdtr(n - 1, -abs(t)))
    elif abs(summary.mean) > rounding:  # all differences are the same, and not zero
        p = 2 * 0.5**n
    else:
        p = 1.0
    return Difference(**vars(summary), p=p)


def differences(
    rows: Mapping[str, Mapping[int, float]], reference: str, within: Range = ANYTHING
) -> dict[str, Difference]:
    """Subtract `reference` from every other row, over the seeds that both have.

    `rows` has values by label and seed, and `within` is the range in which they lie (see `paired`).
    A row that shares no seed with the reference is left out. The p-values are Holm-corrected over
    all rows.
    """
    reference_values = rows[reference]
    by_label: dict[str, Difference] = {}
    for label, values in rows.items():
        seeds = [seed for seed in reference_values if seed in values]
        if label != reference and seeds:
            first = [values[seed] for seed in seeds]
            second = [reference_values[seed] for seed in seeds]
            by_label[label] = paired(first, second, within)
    adjusted = holm([difference.p for difference in by_label.values()])
    for label, p in zip(by_label, adjusted, strict=True):
        by_label[label] = replace(by_label[label], p=p)
    return by_label


def mark(mean: float, p: float | None) -> Literal["▲", "▼", "=", "?"]:
    """Return the sign that a difference has in a table.

    ▲ means shown to be better, ▼ shown to be worse, = no difference shown, and ? too few seeds for
    a test. `p` is the corrected p-value of `differences`, so that a mark never claims more than the
    p-value in its row. The interval of the row may claim more, since it describes this row alone.
    """
    if p is None or math.isnan(p):
        return "?"
    if p >= ALPHA:
        return "="
    if mean > 0:
        return "▲"
    return "▼"


def holm(ps: Sequence[float]) -> list[float]:
    """Return Holm's step-down adjustment for several rows at once.

    The k-th smallest of m p-values (k from 0) becomes min(1, (m - k) p), and at least as large as
    those before it. NaN (nothing was tested) does not count as a test.
    """
    order = sorted((p, i) for i, p in enumerate(ps) if not math.isnan(p))
    adjusted = [math.nan] * len(ps)
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        adjusted[i] = largest
    return adjusted


def seeds_needed(std: float, effect: float, *, tests: int = 1) -> int | None:
    """Estimate the seeds with which a paired t-test finds a true difference in four of five cases.

    `effect` is the true difference and `std` the deviation of the paired differences. `tests` are
    made at once, so each has the level 0.05 / tests (the first step of Holm). None where more than
    `MOST_SEEDS` are needed.
    """
    alpha = ALPHA / tests
    if std <= ROUNDING * abs(effect):
        # The sign test of `paired` is used then: 2 / 2ⁿ must reach the level.
        return math.ceil(1 - math.log2(alpha))

    def power(n: int) -> float:
        """Return the chance that n seeds show a difference of the right sign."""
        critical = float(stdtrit(n - 1, 1 - alpha / 2))
        shift = abs(effect) / std * math.sqrt(n)
        # The other tail, a significant difference of the wrong sign, is no success.
        return 1 - float(nctdtr(n - 1, shift, critical))

    # Double the number until it is enough, then bisect.
    too_few = 1
    enough = 2
    while power(enough) < POWER:
        if enough >= MOST_SEEDS:
            return None
        too_few = enough
        enough = min(2 * enough, MOST_SEEDS)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if power(middle) >= POWER:
            enough = middle
        else:
            too_few = middle
    return enough
