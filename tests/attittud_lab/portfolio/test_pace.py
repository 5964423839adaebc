"""Forecasts follow the pace of the trials that have finished: the range that is shown covers the
outcome.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attittud_lab.output.progress import EARLY
from attittud_lab.portfolio.budget import Plan, expected_runs
from attittud_lab.portfolio.pace import FEW, Pace
from tests.helpers.portfolios import job

LABELS = ["primary_only", "multitask", "pretrain", "multitask, own head"]
FOLDS = 3


def made(at_once: int = 1, **costs: float) -> Pace:
    """Four candidates on three folds, of which a full run was forecast to take 100 s, or what
    `costs` says.
    """
    config = job("portfolio.rungs=[{at: 0.34, keep: 0.25}]")
    runs = expected_runs(len(LABELS), FOLDS, config)
    by_label = {label: costs.get(label, 100.0) for label in LABELS}
    return Pace(Plan({}, LABELS, 1, runs, 100 * runs, costs=by_label), config, FOLDS, at_once)


def test_what_is_left_is_the_plan_without_what_is_done() -> None:
    pace = made()
    pace.begin(0, LABELS)
    in_all = pace.plan.seconds
    # At least one candidate goes on after the first rung; at most one more, which is then
    # primary_only.
    fewer = in_all - FOLDS * 100 * 2 / 3 - 100
    assert pace.left() == pytest.approx((EARLY[0] * fewer, EARLY[1] * in_all))
    for _ in range(2):  # counted once
        pace.skip("primary_only", 0)
    assert pace.left()[1] == pytest.approx(EARLY[1] * (in_all - 100 / 3))
    pace.begin(1, LABELS[:2])
    assert pace.left()[1] == pytest.approx(EARLY[1] * (2 * FOLDS * 100 * 2 / 3 + 100))
    pace.begin_final(LABELS[:1], 0.5)
    assert pace.left()[1] == pytest.approx(EARLY[1] * 50)
    pace.skip(LABELS[0], None)
    assert pace.left() == (0.0, 0.0)


def test_trials_at_the_same_time_share_the_seconds() -> None:
    two = made(at_once=2)
    two.begin(0, LABELS)
    trials = two.plan.seconds - 100
    assert two.left()[1] == pytest.approx(EARLY[1] * (trials / 2 + 100))  # one final training


@settings(deadline=None, max_examples=50)
@given(
    st.floats(0.2, 5),
    st.lists(st.floats(0.9, 1.1), min_size=19, max_size=19),
    st.lists(st.floats(0.5, 2), min_size=4, max_size=4),
    st.integers(0, 12),
)
def test_the_range_covers_the_outcome_at_any_pace(
    slower: float, noise: list[float], wrong: list[float], before: int
) -> None:
    """`wrong`: how far the timed steps of each candidate are off. `before`: the trials of an
    earlier process.
    """
    pace = made(**dict(zip(LABELS, (100 * factor for factor in wrong), strict=True)))
    alive = [LABELS, LABELS[:2], LABELS[1:2]]
    trials = [(0, label, fold, 100 / 3) for label in alive[0] for fold in range(FOLDS)]
    trials += [(1, label, fold, 200 / 3) for label in alive[1] for fold in range(FOLDS)]
    trials.append((2, LABELS[1], None, 100.0))
    seconds = [slower * trial[3] * factor for trial, factor in zip(trials, noise, strict=True)]
    timed = []
    for number, (stage, label, fold, _) in enumerate(trials):
        if number == 0 or stage != pace.stage:
            if stage < 2:
                pace.begin(stage, alive[stage])
            else:
                pace.begin_final(alive[stage], 1.0)
        if number < before:
            pace.skip(label, fold)
            continue
        pace.finish(label, fold, seconds[number])
        timed.append(label)
        if len(timed) >= FEW and set(pace.labels) <= set(timed):
            low, high = pace.left()
            assert low <= sum(seconds[number + 1 :]) + 1e-6
            assert high >= sum(seconds[number + 1 :]) - 1e-6
    assert pace.left() == (0.0, 0.0)
