"""Choices from out-of-fold predictions, against slow and plain oracles."""

import math
from dataclasses import replace
from itertools import combinations_with_replacement
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.data.tasks import Examples, Task
from attittud_lab.errors import InputError
from attittud_lab.portfolio.choose import Curve, HeldOut, greedy, kept_count, mixed, survivors
from attittud_lab.predict.model import Classifier
from attittud_lab.training.evaluate import figures

SCORES = st.lists(
    st.tuples(st.sampled_from([0.5, 0.6, 0.7]), st.floats(0.1, 2)), min_size=1, max_size=12
)


def held(targets: torch.Tensor, metric: str = "accuracy", folds: int = 2) -> HeldOut:
    objective = "multi_label" if targets.ndim == 2 else "classify"
    task = Task(
        "primary", objective, ["a", "b", "c"], Examples(torch.zeros(len(targets), 1), targets)
    )
    return HeldOut(task, targets, np.arange(len(targets)) % folds, metric)


def test_an_auc_that_no_fold_defines_is_refused() -> None:
    """Together both folds have both kinds, but areas are never taken over two models."""
    alike = torch.tensor([[1, 0, 0], [0, 0, 1]]).repeat(5, 1)  # folds alternate
    with pytest.raises(InputError) as caught:
        held(alike, "auc").check()
    said = str(caught.value)
    assert (
        "data.primary: 10 labelled examples are held out in 2 folds (positive: a 5, b 0, c 5)"
        in said
    )
    assert "AUC to choose by is not defined" in said and said.endswith(
        "use training.metric: macro_f1"
    )
    held(alike, "macro_f1").check()
    held(
        torch.tensor([[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]]), "auc"
    ).check()  # one fold is enough


@given(SCORES, st.integers(0, 12))
def test_the_best_evaluation_is_chosen_from_a_smoothed_curve(
    looks: list[tuple[float, float]], second: int
) -> None:
    """Over neighbours of the same phase: the first look with a new head says nothing about the last
    one with the old.
    """
    curve = Curve([score for score, _ in looks], [loss for _, loss in looks], second)
    values = []
    for i in range(len(looks)):
        near = [
            look for j, look in enumerate(looks) if abs(i - j) < 2 and (i < second) == (j < second)
        ]
        values.append((fmean(s for s, _ in near), -fmean(x for _, x in near)))
    assert curve.best == values.index(max(values)) and curve.value == max(values)
    assert curve.lowest_loss == pytest.approx(min(-loss for _, loss in values))


@given(SCORES, st.integers(0, 12), st.integers(1, 500))
def test_the_model_is_taken_at_the_latest_look_that_is_not_clearly_worse(
    looks: list[tuple[float, float]], second: int, count: int
) -> None:
    """Within one standard error of the best smoothed score; where that is 0, as without a number of
    examples.
    """
    curve = Curve([score for score, _ in looks], [loss for _, loss in looks], second, count)
    scores = [score for score, _ in curve.smoothed]
    top = max(scores)
    if top in (0.0, 1.0):
        assert curve.best == replace(curve, count=0).best
    else:
        assert curve.best == max(
            i for i, x in enumerate(scores) if x >= top - math.sqrt(top * (1 - top) / count)
        )
    assert curve.value == curve.smoothed[curve.best]


@given(SCORES, st.integers(1, 11), st.integers(0, 12), st.integers(0, 500))
def test_an_evaluation_that_is_not_kept_never_becomes_the_best(
    looks: list[tuple[float, float]], reached: int, second: int, count: int
) -> None:
    """What a rung keeps: the best of the looks whose neighbours are known, and the last one."""
    early = looks[:reached]
    before = Curve([score for score, _ in early], [loss for _, loss in early], second, count)
    after = Curve([score for score, _ in looks], [loss for _, loss in looks], second, count)
    last = len(early) - 1
    assert after.best > last or after.best in {before.best_of(last), last}


@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.tuples(st.sampled_from([0.1, 0.2]), st.floats(-1, 0)),
        min_size=1,
    ),
    st.floats(0.01, 1),
)
def test_halving_keeps_the_best_candidates_and_primary_only(
    values: dict[str, tuple[float, float]], keep: float
) -> None:
    kept = survivors(values, keep, "a")
    count = kept_count(len(values), keep)
    assert 1 <= count <= len(values) and abs(count - keep * len(values)) <= max(
        0.5, 1 - keep * len(values)
    )
    assert len(kept) in (count, count + 1) and ("a" in kept) == ("a" in values)
    for label in values.keys() - set(kept):
        assert sum(values[other] >= values[label] for other in kept[:count]) == count


def slow_loss(likely: np.ndarray, targets: np.ndarray) -> float:
    terms = []
    for row, target in zip(likely, targets, strict=True):
        if np.ndim(target):
            terms += [
                -math.log(max(1e-12, p if t else 1 - p)) for p, t in zip(row, target, strict=True)
            ]
        else:
            terms.append(-math.log(max(1e-12, row[target])))
    return fmean(terms)


@pytest.mark.parametrize("several", [False, True])
@given(seed=st.integers(0, 10_000))
def test_greedy_picks_against_brute_force(several: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = torch.from_numpy(random.normal(size=(3, 12, 3)) * 2)
    targets = torch.from_numpy(
        random.integers(0, 2, (12, 3)) if several else random.integers(0, 3, 12)
    )
    held_out = held(targets)
    likely = {name: held_out.likely(part) for name, part in zip("xyz", scores, strict=True)}
    assert held_out.loss(likely["x"]) == pytest.approx(slow_loss(likely["x"], targets.numpy()))

    def loss(names: tuple[str, ...]) -> float:
        return slow_loss(np.mean([likely[name] for name in names], axis=0), targets.numpy())

    picks = greedy(likely, held_out, "x", 5)
    assert picks["x"] >= 1 and sum(picks.values()) <= 5
    # Greedy: each pick is the best one after those before it; the best prefix counts.
    series: tuple[str, ...] = ("x",)
    prefixes = [series]
    while len(series) < 5:
        series = (*series, min("xyz", key=lambda name: loss((*series, name))))
        prefixes.append(series)
    best = min(map(loss, prefixes))
    chosen = tuple(name for name, count in picks.items() for _ in range(count))
    assert loss(chosen) == pytest.approx(best, rel=1e-9) and best <= loss(("x",))
    # With two picks, greedy from x is the best of all mixtures that have x.
    two = greedy(likely, held_out, "x", 2)
    everything = [names for names in combinations_with_replacement("xyz", 2) if "x" in names] + [
        ("x",)
    ]
    assert loss(tuple(n for n, count in two.items() for _ in range(count))) == pytest.approx(
        min(map(loss, everything))
    )


def test_picks_that_change_nothing_but_rounding_do_not_count() -> None:
    """Copies of the best candidate lower a loss in its last digits, and 4 to 2 is 2 to 1."""
    random = np.random.default_rng(0)
    targets = torch.arange(30) % 3
    held_out = held(targets)
    good = held_out.likely(
        torch.nn.functional.one_hot(targets) * 3 + torch.from_numpy(random.normal(size=(30, 3)))
    )
    assert greedy({"x": good, "y": np.full_like(good, 1 / 3)}, held_out, "x", 12) == {"x": 1}
    assert greedy({"x": good, "y": good * (1 + 1e-15)}, held_out, "x", 12) == {"x": 1}
    for seed in range(20):
        parts = np.random.default_rng(seed).normal(size=(2, 30, 3))
        likely = {
            name: held_out.likely(torch.from_numpy(part))
            for name, part in zip("xy", parts, strict=True)
        }
        assert math.gcd(*greedy(likely, held_out, "x", 6).values()) == 1


@pytest.mark.parametrize("several", [False, True])
def test_the_score_of_a_mixture_equals_that_of_a_model_with_members(several: bool) -> None:
    class Fixed(torch.nn.Module):
        def __init__(self, outputs: torch.Tensor) -> None:
            super().__init__()
            self.outputs = outputs

        def forward(self, inputs: torch.Tensor, head: str) -> torch.Tensor:
            return self.outputs

    parts = torch.randn(2, 6, 3)
    held_out = held(
        torch.zeros(6, 3, dtype=torch.int64) if several else torch.zeros(6, dtype=torch.int64)
    )
    module = Classifier(
        [Fixed(part) for part in parts], [0.75, 0.25], several=several, temperature=1.0
    )
    likely = {"a": held_out.likely(parts[0]), "b": held_out.likely(parts[1])}
    found = mixed(likely, {"a": 3, "b": 1}, several=several)
    torch.testing.assert_close(module(torch.zeros(6, 1), raw=True), found, rtol=1e-5, atol=1e-5)


def test_auc_is_the_mean_over_folds() -> None:
    targets = torch.tensor([[0, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 1, 1]])
    held_out, outputs = held(targets, "auc"), torch.randn(6, 3)
    outputs[1::2] += 5  # another model with another scale
    found = held_out.figures(outputs)
    by_fold = [figures(held_out.task, outputs[i::2], targets[i::2]) for i in range(2)]
    assert found["auc"] == pytest.approx(fmean(part["auc"] for part in by_fold))
    assert found["auc/c"] == by_fold[1]["auc/c"] and math.isnan(
        by_fold[0]["auc/c"]
    )  # defined in one fold only
    assert found["loss"] == pytest.approx(figures(held_out.task, outputs, targets)["loss"])
