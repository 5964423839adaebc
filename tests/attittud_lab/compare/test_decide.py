"""The decision of a comparison, on made-up figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attittud_lab.compare.decide import ComparedTable, Scores, decide

SEEDS = 6
NOISE = np.array([-1.0, 0.7, 0.2, -0.6, 1.1, -0.4]) / 100
"""What a seed does to all strategies alike."""


def rows(spread: float = 0.001, **means: float | tuple[float, float]) -> list[Scores]:
    """Rows by their mean on test, or on both; `spread` is what a seed does to one alone."""
    found = []
    for i, (label, mean) in enumerate(means.items()):
        validation, test = mean if isinstance(mean, tuple) else (mean, mean)
        own = spread * np.random.default_rng(i).normal(size=SEEDS)
        own -= own.mean()
        figures = [dict(enumerate(m + NOISE + own)) for m in (validation, test)]
        found.append(Scores(label, *figures))
    return found


def outcome(table: ComparedTable) -> tuple[str, str | None]:
    return table.decision.outcome, table.decision.strategy


def test_clear_gain_over_both_baselines():
    table = decide(rows(primary_only=0.8, multitask=0.82, flip=0.85, pcgrad=0.81), 0.005)
    assert outcome(table) == ("use", "flip")
    assert "Use flip" in table.decision.text and "+5.0 points" in table.decision.text
    flip = next(row for row in table.rows if row.label == "flip")
    assert flip.to_multitask is not None and flip.to_multitask.mean == pytest.approx(0.03)
    assert next(row for row in table.rows if row.label == "multitask").to_multitask is None


def test_the_plain_sum_is_recommended_if_nothing_beats_it():
    expected = ("use", "multitask")
    assert outcome(decide(rows(primary_only=0.8, multitask=0.84, flip=0.82), 0.005)) == expected


def test_a_strategy_not_shown_to_beat_multitask_is_not_recommended_over_it():
    table = decide(rows(0.004, primary_only=0.8, multitask=0.85, flip=0.8505), 0.005)
    assert outcome(table) == ("use", "multitask")
    assert "tuned multitask by +0.1" in table.decision.text


def test_no_help_needs_a_narrow_interval():
    narrow = decide(rows(0.001, primary_only=0.8, multitask=0.79, flip=0.8), 0.005)
    assert outcome(narrow) == ("no_help", "primary_only")
    assert "do not help" in narrow.decision.text
    assert "0.5 points is ruled out" in narrow.decision.text
    wide = decide(rows(0.03, primary_only=0.8, multitask=0.79, flip=0.8), 0.005)
    assert outcome(wide) == ("unclear", None)
    assert wide.decision.seeds_needed is not None and wide.decision.seeds_needed > SEEDS
    assert f"compare.seeds={wide.decision.seeds_needed}" in wide.decision.text
    assert "test examples" not in wide.decision.text


@pytest.mark.parametrize(("seeds", "outcome"), [(5, "unclear"), (6, "no_help")])
def test_equal_results_of_few_seeds_rule_nothing_out(seeds, outcome):
    """Eight test examples, all right in every run: the interval has no width, and says little."""
    same = dict.fromkeys(range(seeds), 1.0)
    decision = decide(
        [Scores(label, same, same) for label in ("primary_only", "multitask", "flip")], 0.005
    ).decision
    assert decision.outcome == outcome
    assert decision.seeds_needed == (6 if outcome == "unclear" else None)
    assert ("more test examples would tell more" in decision.text) == (outcome == "unclear")
    # An interval of no width would look like certainty.
    assert f"+0.0 points (the same with all {seeds} seeds, p = 1)" in decision.text
    assert "interval" not in decision.text


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_decide_nothing(seeds):
    """A gain of almost exactly 20 points twice: the t-test of two seeds would be sure."""
    figures = {"primary_only": (0.5, 0.5), "multitask": (0.7, 0.7001)}
    scores = [
        Scores(label, *[dict(enumerate(values[:seeds]))] * 2) for label, values in figures.items()
    ]
    decision = decide(scores, 0.005).decision
    assert (decision.outcome, decision.strategy, decision.row) == ("unclear", None, "multitask")
    assert decision.seeds_needed == 5 and "raise compare.seeds to at least 5" in decision.text
    assert "interval" not in decision.text and "nan" not in decision.text


def test_a_row_that_lost_seeds_is_not_recommended():
    """Its figures come from the runs that did not diverge."""
    whole = rows(primary_only=0.8, multitask=0.82, flip=0.9)
    assert outcome(decide(whole, 0.005)) == ("use", "flip")
    validation, test = (
        {seed: side[seed] for seed in range(4)} for side in (whole[2].validation, whole[2].test)
    )
    expected = ("use", "multitask")
    assert outcome(decide([*whole[:2], Scores("flip", validation, test)], 0.005)) == expected


def test_a_gain_too_small_to_be_worth_it():
    figures = rows(0.0002, primary_only=0.8, multitask=0.801, flip=0.802)
    assert outcome(decide(figures, 0.01)) == ("no_help", "primary_only")
    assert outcome(decide(figures, 0.0)) == ("use", "flip")


def test_selection_uses_only_validation_results():
    """flip is best on test by far, but not on validation: the decision must not notice."""
    table = decide(rows(primary_only=0.8, multitask=(0.9, 0.82), flip=(0.85, 0.99)), 0.005)
    assert outcome(table) == ("use", "multitask")


def test_p_values_are_corrected_over_the_rows():
    figures = rows(0.01, primary_only=0.8, multitask=0.79, flip=0.815, pcgrad=0.81)
    table = decide(figures, 0.005)
    base = list(figures[0].test.values())
    raw = [stats.ttest_rel(list(row.test.values()), base).pvalue for row in figures[1:]]
    found = {row.label: row.to_primary_only.p for row in table.rows if row.to_primary_only}
    smallest = int(np.argmin(raw))
    assert found[figures[1 + smallest].label] == pytest.approx(min(1, 3 * raw[smallest]))
    assert all(corrected >= p for corrected, p in zip(found.values(), raw, strict=True))


@given(
    st.lists(st.floats(0, 1).map(lambda x: round(x, 3)), min_size=12, max_size=12),
    st.floats(0, 0.05),
)
def test_no_decision_without_evidence(values, worthwhile):
    """A "use" has a significant gain, a "no help" an interval below a useful gain."""
    figures = [
        Scores(
            label,
            dict(enumerate(values[4 * i : 4 * i + 4])),
            dict(enumerate(values[4 * i : 4 * i + 4])),
        )
        for i, label in enumerate(("primary_only", "multitask", "flip"))
    ]
    table = decide(figures, worthwhile)
    gains = {row.label: row.to_primary_only for row in table.rows if row.to_primary_only}
    if table.decision.outcome == "use":
        gain = gains[table.decision.strategy or ""]
        assert gain.mean > 0 and gain.p < 0.05
    if table.decision.outcome == "no_help":
        assert any(gain.high < worthwhile for gain in gains.values())
    assert (table.decision.outcome == "unclear") == (table.decision.strategy is None)


@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=3, max_size=6))
def test_no_interval_leaves_its_range(values):
    labels = ("primary_only", "multitask", *(f"s{i}" for i in range(len(values) - 2)))
    scores = [
        Scores(label, *[dict(enumerate(row))] * 2)
        for label, row in zip(labels, values, strict=True)
    ]
    for row in decide(scores, 0.005).rows:
        for side in (row.validation, row.test):
            assert 0 <= side.low <= side.mean + 1e-12 and side.mean - 1e-12 <= side.high <= 1
        for found in (row.to_primary_only, row.to_multitask):
            assert found is None or -1 <= found.low <= found.high <= 1
