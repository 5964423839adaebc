"""Sentences of a portfolio: which outcome is told when, and that no figure is shown as NaN."""

import math

import pytest
import torch

from attittud_lab.portfolio import words

GAIN = {
    "best": "linear, pooled",
    "reference": "linear, alone",
    "of": 3,
    "difference": 0.0562,
    "low": 0.01,
    "high": 0.09,
}


def test_differences_are_points_with_a_sign() -> None:
    assert [words.points(value) for value in (0.0562, -0.0004, -0.1)] == ["+5.6", "+0.0", "-10.0"]


def test_the_answer_follows_the_interval() -> None:
    answers = {
        words.answer(GAIN | ends) for ends in ({}, {"low": -0.1}, {"low": -0.2, "high": -0.1})
    }
    assert len(answers) == 3
    unknown = GAIN | {"low": math.nan, "high": math.nan}
    assert words.answer(unknown) == words.answer(GAIN | {"low": -0.1})


def test_the_decision_names_both_candidates_and_the_members() -> None:
    text = words.decision("single", "linear, pooled", {"linear, pooled": 1}, GAIN, "accuracy")
    assert all(part in text for part in ("linear, pooled", "linear, alone", "+5.6", "+1.0 to +9.0"))
    mean = words.decision("ensemble", "a", {"a": 2, "b": 1}, None, "accuracy")
    assert "all labels" not in words.decision(
        "ensemble", "a", {"a": 1}, None, "accuracy", of_folds=True
    )
    assert "a (2 of 3)" in mean
    assert "b (1 of 3)" in mean
    for change in ({"difference": math.nan}, {"few_groups": 2, "low": math.nan, "high": math.nan}):
        assert "nan" not in words.decision("single", "a", {"a": 1}, GAIN | change, "accuracy")


def test_what_is_not_there_is_not_told() -> None:
    assert (
        words.rare([])
        == words.chance(None)
        == words.without_us(None, {}, "accuracy")
        == words.legend([])
        == ""
    )
    assert words.guess({"beaten": True}, 0.5, "accuracy", "A cure.") == ""
    assert "c2" in words.rare(["c2"])


def test_a_model_that_guesses_gets_its_cure_and_no_nan() -> None:
    estimate = {"beaten": False, "difference": -0.1, "class": "c0", "score": 0.6}
    told = words.guess(estimate, 0.5, "accuracy", "A cure.")
    assert all(part in told for part in ("c0", "50.0 %", "60.0 %", "A cure."))
    undefined = words.guess(estimate | {"difference": math.nan}, math.nan, "auc", "A cure.")
    assert "nan" not in undefined
    assert "A cure." in undefined


def test_a_rough_chance_says_so() -> None:
    calibrated = words.chance({"value": 0.78, "calibrated": True})
    rough = words.chance({"value": 0.78, "calibrated": False}, "early")
    assert "78%" in calibrated
    assert words.ROUGH not in calibrated
    assert words.ROUGH in rough
    assert "early" in rough


def test_names_of_networks_are_explained_where_they_need_it() -> None:
    plain = {"auxiliary_weight": 1, "head": "data"}
    assert words.legend([plain]) == ""
    weight = words.legend([plain, plain | {"auxiliary_weight": 4}])
    both = words.legend([plain | {"auxiliary_weight": 4}, plain | {"head": "own"}])
    assert "own head" not in weight
    assert weight in both
    assert "own head" in both


def test_idle_cores_are_told_only_where_they_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    plan = words.budget.Plan({}, [], 1, 4.0, 840.0)
    cpu = torch.device("cpu")
    assert "--workers 4" in words.idle_cores(plan, 1, cpu, 60)
    assert words.idle_cores(plan, 4, cpu, 60) == words.idle_cores(plan, 1, cpu, 1000) == ""
    assert words.idle_cores(plan, 1, torch.device("cuda"), 60) == ""
