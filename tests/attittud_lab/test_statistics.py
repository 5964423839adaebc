"""The statistics of comparisons against scipy's tests, definitions, and simulation."""

import math
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attittud_lab.statistics import (
    ALPHA,
    POWER,
    PROPORTION,
    differences,
    holm,
    mark,
    paired,
    seeds_needed,
    share_interval,
    summarise,
)

figures = st.floats(-100, 100).map(lambda x: round(x, 3))
pairs = st.lists(st.tuples(figures, figures), min_size=3, max_size=12)


@given(pairs)
def test_the_paired_difference_equals_scipys_t_test(values):
    first, second = zip(*values, strict=True)
    found = paired(first, second)
    differences = np.subtract(first, second)
    assert found.mean == pytest.approx(differences.mean(), abs=1e-9)
    assert found.std == pytest.approx(differences.std(ddof=1), abs=1e-9)
    if differences.std(ddof=1) > 1.5e-4:  # else the sign test
        expected = stats.ttest_rel(first, second)
        interval = expected.confidence_interval(0.95)
        assert found.p == pytest.approx(expected.pvalue, rel=1e-9, abs=1e-12)
        shown = (found.low, found.high)
        assert shown == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-9)
        # The interval and the test say the same.
        if abs(found.p - 0.05) > 1e-6:
            assert (found.p < 0.05) == (found.low > 0 or found.high < 0)


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_seeds_have_no_interval_and_no_p_value(n):
    found = paired([0.9, 0.95][:n], [0.8, 0.8][:n])
    assert found.n == n
    assert all(map(math.isnan, (found.low, found.high, found.p)))
    assert math.isnan(found.std) == (n == 1)
    assert mark(found.mean, found.p) == "?"


@given(st.lists(st.floats(0, 1), min_size=3, max_size=12))
def test_an_interval_is_cut_to_the_range_of_its_values(values):
    """Nothing else changes: a true mean in the range is covered as often as before."""
    free, cut = summarise(values), summarise(values, PROPORTION)
    assert (cut.mean, cut.std) == (free.mean, free.std)
    assert (cut.low, cut.high) == (max(0.0, free.low), min(1.0, free.high))


def test_differences_are_corrected_and_marked():
    base = {0: 0.5, 1: 0.52, 2: 0.49, 3: 0.51}
    rows = {
        "base": base,
        "far": {s: v + 0.1 + s / 1000 for s, v in base.items()},
        "near": {0: 0.51, 1: 0.5, 3: 0.52},
    }
    found = differences(rows, "base", PROPORTION)
    alone = []
    for name in ("far", "near"):
        seeds = list(rows[name])
        alone.append(paired([rows[name][s] for s in seeds], [base[s] for s in seeds]).p)
    assert [difference.p for difference in found.values()] == holm(alone)
    assert found["near"].n == 3
    assert {name: mark(f.mean, f.p) for name, f in found.items()} == {"far": "▲", "near": "="}
    assert mark(-0.1, 0.049) == "▼" and mark(0.1, ALPHA) == "=" and mark(0.1, None) == "?"


@pytest.mark.parametrize("n", [5, 6])
def test_equal_differences_are_held_to_the_sign_test(n):
    base = [0.1 * i for i in range(n)]
    # equal but for rounding
    found = paired([float(np.float32(value + 0.1)) for value in base], base)
    assert found.p == pytest.approx(stats.binomtest(n, n).pvalue)
    assert paired(base, base).p == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(ps):
    """By definition: a row is rejected when Bonferroni rejects every set of rows that it is in."""
    everything = range(len(ps))
    for i, adjusted in enumerate(holm(ps)):
        others = [j for j in everything if j != i]
        sets = chain.from_iterable(combinations(others, size) for size in range(len(ps)))
        wanted = max((len(s) + 1) * min(ps[j] for j in (i, *s)) for s in sets)
        assert adjusted == pytest.approx(min(1.0, wanted))


def test_seeds_needed_reach_the_power_in_simulation():
    n = seeds_needed(1.0, 0.7, tests=4)
    generator = np.random.default_rng(0)

    def power(size: int) -> float:
        draws = generator.normal(0.7, 1.0, (40_000, size))
        found = stats.ttest_1samp(draws, 0, axis=1)
        return float(np.mean((found.pvalue < ALPHA / 4) & (found.statistic > 0)))

    assert power(n) > POWER - 0.01
    assert n == 2 or power(n - 1) < POWER + 0.01


@pytest.mark.parametrize("hits", [0, 1, 20, 39, 40])
def test_the_interval_of_a_share_holds_the_shares_that_a_binomial_test_accepts(hits):
    """Each tail of the binomial distribution has 2.5 % at the end of the interval."""
    low, high = share_interval(hits, 40)
    assert (low == 0) == (hits == 0) and (high == 1) == (hits == 40)
    if hits:
        assert stats.binom.sf(hits - 1, 40, low) == pytest.approx(0.025)
    if hits < 40:
        assert stats.binom.cdf(hits, 40, high) == pytest.approx(0.025)
