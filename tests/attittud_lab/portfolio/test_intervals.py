"""Intervals from draws of the held-out examples, and the comparison with a constant guess."""

import math
import weakref

import numpy as np
import pytest
import torch

from attittud_lab.portfolio.choose import HeldOut
from attittud_lab.portfolio.intervals import Intervals, guess
from tests.helpers.standings import held, outputs_right


@pytest.mark.parametrize(
    ("metric", "several"),
    [("accuracy", False), ("macro_f1", False), ("macro_f1", True), ("auc", True)],
)
def test_scores_of_draws_are_those_of_an_evaluation(metric, several):
    targets = torch.randint(2, (60, 3)) if several else torch.randint(3, (60,))
    outputs = torch.randn(60, 3)
    if metric == "macro_f1":  # c2 is so rare that some draws lack it
        if several:
            targets[:, 2] = torch.arange(60) == 0
        else:
            targets[1:] %= 2
            targets[0] = 2
        outputs[:, 2] -= 9
    outputs = outputs.round() if metric == "auc" else outputs  # with ties
    held_out = held(targets, metric)
    intervals = Intervals(held_out, None, 0)
    scores = intervals.scores(outputs)[:20]
    for score, drawn in zip(scores, intervals.draws, strict=False):
        some = HeldOut(held_out.task, targets[drawn], held_out.folds[drawn], metric)
        assert score == pytest.approx(some.figures(outputs[drawn])[metric], abs=1e-6)


def test_the_interval_of_an_accuracy_is_that_of_a_proportion():
    targets = torch.arange(400) % 2
    outputs = outputs_right(targets, 0.75)
    intervals = Intervals(held(targets, "accuracy"), None, 0)
    low, high = intervals.ends(intervals.scores(outputs))
    error = math.sqrt(0.75 * 0.25 / 400)
    assert low == pytest.approx(0.75 - 1.96 * error, abs=0.012)
    assert high == pytest.approx(0.75 + 1.96 * error, abs=0.012)
    # The other model is always wrong, so the difference varies as much as the score.
    assert intervals.error(outputs, outputs_right(targets, 0.0)) == pytest.approx(error, rel=0.15)
    assert intervals.error(outputs, outputs) == 0
    difference = intervals.difference(outputs, outputs_right(targets, 0.5))
    assert difference["difference"] == pytest.approx(0.25)
    assert 0.2 < difference["low"] < 0.25 < difference["high"] < 0.3


def test_outputs_stay_as_long_as_their_scores():
    """Scores are found by the identity of the outputs, which a later tensor could have too."""
    targets = torch.arange(40) % 2
    intervals = Intervals(held(targets, "accuracy"), None, 0)
    outputs = outputs_right(targets, 0.75)
    kept = weakref.ref(outputs)
    intervals.scores(outputs)
    del outputs
    assert kept() is not None


def test_groups_are_drawn_whole_and_few_of_them_have_no_interval():
    targets = torch.arange(400) % 2
    outputs = outputs_right(targets, 0.75)
    single = Intervals(held(targets, "accuracy"), None, 0)
    low, high = single.ends(single.scores(outputs))
    patients = Intervals(held(targets, "accuracy"), [f"g{i // 40}" for i in range(400)], 0)
    wide = patients.ends(patients.scores(outputs))  # ten patients say less than 400 examples
    assert wide[1] - wide[0] > 2 * (high - low)
    few = Intervals(held(targets, "accuracy"), [f"g{i // 80}" for i in range(400)], 0)
    assert few.few == 5
    assert all(map(math.isnan, few.ends(few.scores(outputs))))
    assert math.isnan(few.error(outputs, outputs_right(targets, 0.5)))


@pytest.mark.parametrize(("right", "beaten"), [(0.9, True), (0.3, False)])
def test_a_model_is_compared_with_the_most_frequent_class(right, beaten):
    targets = (torch.arange(300) % 5 > 2).long()  # three in five are class c0
    compared = guess(outputs_right(targets, right), Intervals(held(targets, "accuracy"), None, 0))
    assert compared["class"] == "c0"
    assert compared["score"] == pytest.approx(0.6)
    assert compared["difference"] == pytest.approx(right - 0.6, abs=1e-3)
    assert compared["beaten"] == beaten


def test_the_ends_leave_out_a_fortieth_of_the_defined_draws_on_either_side():
    scores = np.append(np.arange(1001.0), math.nan)
    assert Intervals.ends(scores) == pytest.approx((25, 975))


@pytest.mark.parametrize(("right", "perfect"), [(1.0, True), (0.9, False)])
def test_a_score_within_a_standard_error_of_one_is_perfect(right, perfect):
    targets = torch.arange(60) % 2
    intervals = Intervals(held(targets, "accuracy"), None, 0)
    assert intervals.is_perfect(outputs_right(targets, right)) is perfect
