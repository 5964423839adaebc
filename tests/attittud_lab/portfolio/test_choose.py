"""Choices from out-of-fold predictions, against slow and plain oracles."""

import math
from itertools import combinations_with_replacement
from statistics import fmean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.portfolio.choose import Curve, greedy, mixed
from attittud_lab.predict.model import Classifier
from attittud_lab.training.evaluate import figures
from tests.helpers.standings import held

SCORES = st.lists(
    st.tuples(st.sampled_from([0.5, 0.6, 0.7]), st.floats(0.1, 2)), min_size=1, max_size=12
)


@given(SCORES, st.integers(0, 12), st.sampled_from([0, 20, 400]))
def test_the_best_evaluation_is_chosen_from_a_smoothed_curve(looks, second, count):
    """The first look with a new head says nothing about the last one with the old. With `count`
    examples, the latest look within a standard error of the best one is taken.
    """
    curve = Curve([score for score, _ in looks], [loss for _, loss in looks], second, count)
    values = []
    for i in range(len(looks)):
        near = [
            look for j, look in enumerate(looks) if abs(i - j) < 2 and (i < second) == (j < second)
        ]
        values.append((fmean(s for s, _ in near), -fmean(x for _, x in near)))
    best = values.index(max(values))
    score = values[best][0]
    if count:
        error = math.sqrt(score * (1 - score) / count)
        best = max(i for i, value in enumerate(values) if value[0] >= score - error)
    assert curve.best == best and curve.value == values[best]


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
def test_greedy_picks_against_brute_force(several, seed):
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
    found = loss(tuple(n for n, count in two.items() for _ in range(count)))
    assert found == pytest.approx(min(map(loss, everything)))


@pytest.mark.parametrize("several", [False, True])
def test_the_score_of_a_mixture_equals_that_of_a_model_with_members(several):
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


def test_auc_is_the_mean_over_folds():
    targets = torch.tensor([[0, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 1, 1]])
    held_out, outputs = held(targets, "auc"), torch.randn(6, 3)
    outputs[1::3] += 5  # another model with another scale
    found = held_out.figures(outputs)
    by_fold = [figures(held_out.task, outputs[i::3], targets[i::3]) for i in range(3)]
    assert found["auc"] == pytest.approx(fmean(part["auc"] for part in by_fold))
    areas = [part["auc/c2"] for part in by_fold]  # defined in one fold only
    assert found["auc/c2"] == areas[2]
    assert math.isnan(areas[0]) and math.isnan(areas[1])
    assert found["loss"] == pytest.approx(figures(held_out.task, outputs, targets)["loss"])
