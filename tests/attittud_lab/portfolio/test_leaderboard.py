"""The leaderboard: intervals, the chance that auxiliary data help, what they were worth, and a sentence."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.config.load import loads
from attittud_lab.config.schema import CandidateConfig
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.portfolio.candidates import named
from attittud_lab.portfolio.choose import Curve, HeldOut
from attittud_lab.portfolio.leaderboard import (
    CHANCE,
    Intervals,
    Standing,
    chance,
    chance_words,
    decision,
    guess,
    guess_words,
    like,
    needed_looks,
    rows,
    worth,
)


def held(targets: torch.Tensor, metric: str) -> HeldOut:
    objective = "multi_label" if targets.ndim == 2 else "classify"
    count = targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1
    task = Task("primary", objective, [f"c{i}" for i in range(count)], Examples(torch.zeros(len(targets), 1), targets))
    return HeldOut(task, targets, np.arange(len(targets)) % 3, metric)


@pytest.mark.parametrize(
    ("metric", "several"),
    [("accuracy", False), ("macro_f1", False), ("accuracy", True), ("macro_f1", True), ("auc", True)],
)
def test_scores_of_draws_are_those_of_an_evaluation(metric: str, several: bool) -> None:
    targets = torch.randint(2, (60, 3)) if several else torch.randint(3, (60,))
    held_out, outputs = held(targets, metric), torch.randn(60, 3)
    outputs = outputs.round() if metric == "auc" else outputs  # with ties
    intervals = Intervals(held_out, None, 0)
    found = intervals.scores(outputs)[:20]
    for score, drawn in zip(found, intervals.draws, strict=False):
        some = HeldOut(held_out.task, targets[drawn], held_out.folds[drawn], metric)
        assert score == pytest.approx(some.figures(outputs[drawn])[metric], abs=1e-6)


def test_the_interval_of_an_accuracy_is_that_of_a_proportion() -> None:
    targets = torch.zeros(400, dtype=torch.int64)
    targets[0] = 1
    outputs = torch.tensor([[1.0, 0.0]]).repeat(400, 1)
    outputs[:101] = torch.tensor([0.0, 1.0])  # three in four are right
    low, high = Intervals.ends(Intervals(held(targets, "accuracy"), None, 0).scores(outputs))
    half = 1.96 * math.sqrt(0.75 * 0.25 / 400)
    assert low == pytest.approx(0.75 - half, abs=0.012) and high == pytest.approx(0.75 + half, abs=0.012)
    groups = [f"g{i // 40}" for i in range(400)]  # ten patients say less than 400 examples
    wide = Intervals.ends(Intervals(held(targets, "accuracy"), groups, 0).scores(outputs))
    assert wide[1] - wide[0] > 2 * (high - low)
    assert all(map(math.isnan, Intervals.ends(np.array([math.nan]))))
    five = Intervals(
        held(targets, "accuracy"), [f"g{i // 80}" for i in range(400)], 0
    )  # draws of few groups repeat each other
    assert five.few == 5 and all(map(math.isnan, five.ends(five.scores(outputs))))


def standing(name: str, right: float, losses: list[float], targets: torch.Tensor) -> Standing:
    held_out, outputs = held(targets, "accuracy"), torch.nn.functional.one_hot(targets).float() * 4
    outputs[: round((1 - right) * len(targets))] *= -1
    entry = named(CandidateConfig(name=name), loads(""))
    scores = [held_out.figures(outputs)["accuracy"]] * len(losses)
    return Standing(entry, 1, 10, 1.0, None, dict.fromkeys(range(len(losses)), outputs), Curve(scores, losses))


@given(st.floats(-5, 5), st.floats(-5, 5))
def test_the_chance_rises_with_the_evidence(first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert 0 <= CHANCE.of(low) <= CHANCE.of(high) <= 1


def test_the_chance_after_a_rung() -> None:
    targets = torch.arange(90) % 2
    found = {
        "primary_only": standing("primary_only", 0.6, [1.0, 0.8], targets),
        "multitask": standing("multitask", 0.7, [0.9, 0.5], targets),
    }
    said = chance(found, held(targets, "accuracy"))
    assert said is not None and said["gain"] == pytest.approx(0.9 - 0.7)
    assert said["value"] == CHANCE.of(said["evidence"])
    # Accuracies 0.6 and 0.7 of 90 examples; nine of them are right instead of wrong, by 4 in both outputs.
    wrong, right = math.log(1 + math.exp(4)), math.log(1 + math.exp(-4))
    gained = np.array([wrong - right] * 9 + [0.0] * 81)
    expected = 0.1 / math.sqrt(0.6 * 0.4 / 90) + gained.mean() / (gained.std(ddof=1) / math.sqrt(90))
    assert said["evidence"] == pytest.approx(expected, rel=1e-6)
    assert chance_words(said) == f"chance that the auxiliary data help: {said['value']:.0%}"
    assert chance_words(said, "an early estimate") == f"{chance_words(said)} (an early estimate)"
    other = chance(found, held(targets, "accuracy"), usual=False)
    assert other is not None and other["value"] == said["value"] and said["calibrated"] and not other["calibrated"]
    assert chance_words(other).endswith(
        "% (rough: it was calibrated for the default portfolio.rungs, portfolio.looks and "
        "portfolio.candidates, and this job has others)"
    )
    alone = {"primary_only": found["primary_only"]}
    assert chance(alone, held(targets, "accuracy")) is None and chance_words(None) == ""


def test_no_evidence_where_nothing_differs_or_nothing_can_be_compared() -> None:
    """Equal outputs, and outputs that are certain and right: standard errors of zero divide nothing."""
    targets = torch.arange(90) % 2
    for right in (1.0, 0.6):
        found = {name: standing(name, right, [0.1], targets) for name in ("primary_only", "multitask")}
        said = chance(found, held(targets, "accuracy"))
        assert said is not None and said["evidence"] == 0 and said["value"] == CHANCE.of(0)


def test_rows_worth_and_decision() -> None:
    targets = torch.arange(300) % 2
    all_ = [standing("primary_only", 0.6, [1.0], targets), standing("multitask", 0.9, [0.5], targets)]
    all_.append(Standing(named(CandidateConfig(name="pretrain"), loads("")), diverged="training diverged"))
    intervals = Intervals(held(targets, "accuracy"), None, 0)
    table = rows(all_, intervals, lambda look: {"phase": "guided", "step": 7 + look}, {"multitask": 3})
    assert [row["label"] for row in table] == ["multitask", "primary_only", "pretrain"]
    assert table[0]["picks"] == 3 and table[0]["best"] == {"look": 0, "phase": "guided", "step": 7}
    assert table[0]["low"] < table[0]["score"] < table[0]["high"] and "score" not in table[2]
    found = worth(all_, intervals)
    assert found is not None and found["best"] == "multitask" and found["difference"] == pytest.approx(0.3, abs=0.01)
    assert found["of"] == 1  # candidates that diverged are no choice
    only = decision("single", "multitask", {}, found, "accuracy")
    assert only.endswith(" The points are the best candidate with auxiliary data (multitask) minus primary_only.")
    found["of"] = 2
    # The same examples are wrong, so that the difference is surer than each score.
    assert 0.2 < found["low"] < found["high"] < 0.4
    sentence = decision("single", "multitask", {}, found, "accuracy")
    assert sentence.startswith("The auxiliary data helped: +30.0 points of out-of-fold accuracy (95 % interval ")
    assert sentence.endswith(
        " The model is multitask, trained on all labels. The points are the best candidate with auxiliary data (multitask) "
        "minus primary_only. They may be a little too good, because the same held-out labels chose that candidate."
    )
    exact = found | {"difference": 0.0562, "low": -0.0004, "high": 0.0938}
    in_points = "helped: +5.6 points of out-of-fold accuracy (95 % interval +0.0 to +9.4). "
    assert in_points in decision("single", "multitask", {}, exact, "accuracy")
    unknown = found | dict.fromkeys(("difference", "low", "high"), math.nan)
    assert "nan" not in decision("single", "multitask", {}, unknown, "accuracy")
    worse = found | {"low": -0.2, "high": -0.1}
    assert "did not help" in decision("single", "primary_only", {}, worse, "accuracy")
    assert "It is unclear" in decision("single", "primary_only", {}, found | {"low": -0.1}, "accuracy")
    few = decision("single", "multitask", {}, found | {"low": math.nan, "high": math.nan, "few_groups": 2}, "accuracy")
    assert "It is unclear" in few and "(no interval: only 2 groups are held out)" in few and "nan" not in few
    mean = decision("ensemble", "a", {"a": 2, "b": 1}, None, "accuracy")
    lost = "What the auxiliary data were worth is not known: primary_only diverged."
    assert mean == f"{lost} The model is a mean of a (2 of 3), b (1 of 3)."
    one = decision("ensemble", "a", {"a": 1}, None, "accuracy")
    assert one == f"{lost} The model is a mean of the networks of a, one from each fold."
    refit = decision("ensemble", "a", {"a": 1}, None, "accuracy", "refit")
    assert refit == f"{lost} The model is a, trained on all labels."
    alone = decision("single", "primary_only", {}, None, "accuracy")
    assert alone.endswith(". There was nothing to compare primary_only with.")
    assert worth(all_[:1], intervals) is None


def test_a_candidate_that_stopped_early_is_compared_with_primary_only_at_that_step() -> None:
    targets = torch.arange(300) % 2
    late = standing("primary_only", 0.9, [0.3], targets)
    early = standing("primary_only", 0.5, [1.0], targets)
    curve = Curve([0.5, 0.5, 0.9, 0.9], [1.0, 1.0, 0.3, 0.3])
    plain = Standing(late.candidate, 2, 20, 1.0, None, {0: early.outputs, 3: late.outputs}, curve)
    assert needed_looks(curve, [2, 4]) == {0, 3}
    other = standing("multitask", 0.6, [0.9, 0.9], targets)
    found = worth([plain, other], Intervals(held(targets, "accuracy"), None, 0))
    assert found is not None and found["share"] == 0.5 and found["difference"] == pytest.approx(0.1, abs=0.01)
    sentence = decision("single", "primary_only", {}, found, "accuracy")
    assert sentence.startswith("The auxiliary data helped only at first: ")
    assert "(multitask) minus primary_only, both after 50% of the steps." in sentence
    assert torch.equal(like(plain, other), early.outputs) and torch.equal(like(plain, plain), late.outputs)


def test_the_leaderboard_has_the_order_of_the_choice() -> None:
    """A candidate that stopped is below all that went on; the first one with auxiliary data is compared."""
    targets = torch.arange(300) % 2
    plain, stopped, last = (
        standing(*row, [0.5], targets) for row in (("primary_only", 0.7), ("pretrain", 0.9), ("multitask", 0.6))
    )
    plain.rung = last.rung = 2
    intervals = Intervals(held(targets, "accuracy"), None, 0)
    table = rows([stopped, last, plain], intervals, lambda look: {"phase": "guided", "step": look}, {})
    assert [row["label"] for row in table] == ["primary_only", "multitask", "pretrain"]
    assert [row["ranking"] for row in table] == pytest.approx([0.7, 0.6, 0.9], abs=0.01)
    found = worth([stopped, last, plain], intervals)
    assert found is not None and found["best"] == "multitask"


@pytest.mark.parametrize(("right", "beaten"), [(0.9, True), (0.52, False), (0.3, False)])
def test_a_model_is_compared_with_the_most_frequent_class(right: float, beaten: bool) -> None:
    targets = (torch.arange(300) % 5 > 2).long()  # three in five are class c0
    held_out = held(targets, "accuracy")
    outputs = torch.nn.functional.one_hot(targets).float()
    outputs[: round((1 - right) * 300)] *= -1
    found = guess(outputs, Intervals(held_out, None, 0))
    assert found["class"] == "c0" and found["score"] == pytest.approx(0.6)
    assert found["difference"] == pytest.approx(right - 0.6, abs=1e-3) and found["beaten"] == beaten
    said = guess_words(found, right, "accuracy", "A cure.")
    assert (said == "") == beaten
    if not beaten:
        assert said == (
            f"The model is not shown to be better than guessing: its out-of-fold accuracy is {100 * right:.1f} %. Always "
            "guessing c0, the most frequent class, has 60.0 %. A cure."
        )


def test_with_several_labels_a_constant_guess_has_an_area_of_one_half() -> None:
    targets = torch.arange(120).reshape(60, 2) // 7 % 2
    found = guess(torch.zeros(60, 2), Intervals(held(targets, "auc"), None, 0))
    assert found["class"] is None and found["score"] == pytest.approx(0.5) and not found["beaten"]
    assert "The best constant guess has 50.0 %." in guess_words(found, 0.5, "auc", "")
    few = Intervals(held(targets, "accuracy"), [f"g{i % 2}" for i in range(60)], 0)  # no interval
    assert guess(targets * 2.0 - 1, few)["beaten"] and not guess(1 - targets * 2.0, few)["beaten"]


def test_with_rare_labels_the_guess_gives_all_of_them() -> None:
    """Never giving a label would have an F1 of 0, and every model would seem to be better."""
    targets = torch.zeros(300, 2, dtype=torch.int64)
    targets[::5] = 1
    intervals = Intervals(held(targets, "macro_f1"), None, 0)
    found = guess(torch.ones(300, 2), intervals)
    assert found["score"] == pytest.approx(1 / 3) and found["difference"] == 0 and not found["beaten"]
    assert guess(targets * 2.0 - 1, intervals)["beaten"]
    assert guess(-torch.ones(300, 2), Intervals(held(targets, "accuracy"), None, 0))["score"] == pytest.approx(0.8)


def test_a_score_that_is_not_defined_beats_no_guess() -> None:
    none = torch.zeros(20, 2, dtype=torch.int64)  # the area needs positive examples
    found = guess(torch.randn(20, 2), Intervals(held(none, "auc"), None, 0))
    assert math.isnan(found["difference"]) and found["beaten"] is False
    said = guess_words(found, math.nan, "auc", "A cure.")
    assert said.endswith("guessing: its out-of-fold auc is not defined on these labels. A cure.")


def test_an_output_that_is_not_a_number_leaves_the_area_of_its_fold_undefined() -> None:
    targets = torch.arange(120).reshape(60, 2) // 7 % 2
    outputs = targets * 2.0 - 1
    outputs[3, 0] = math.nan  # in fold 0; the other folds are predicted without an error
    intervals = Intervals(held(targets, "auc"), None, 0)
    assert set(intervals.scores(outputs)) == {1.0}
    assert np.isnan(intervals.scores(torch.full((60, 2), math.nan))).all()


def test_the_area_of_a_constant_needs_no_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = torch.arange(120).reshape(60, 2) // 7 % 2
    intervals, asked = Intervals(held(targets, "auc"), None, 0), list[torch.Tensor]()
    monkeypatch.setattr(intervals, "scores", lambda outputs: asked.append(outputs) or np.full(500, 0.75))
    found = guess(targets * 2.0 - 1, intervals)
    assert len(asked) == 1 and found["low"] == found["high"] == 0.25


def test_a_label_without_examples_lowers_score_and_interval_alike() -> None:
    targets = torch.tensor([[1, 0, 0], [0, 1, 0]]).repeat(50, 1)
    held_out, outputs = held(targets, "macro_f1"), targets * 2.0 - 1
    low, high = Intervals.ends(Intervals(held_out, None, 0).scores(outputs))
    assert low == high == pytest.approx(held_out.figures(outputs)["macro_f1"]) == pytest.approx(2 / 3)
