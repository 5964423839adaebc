"""Areas under the ROC curve, and figures that do not depend on the order of texts."""

import math

import pytest
import torch

from attittud_lab.training.evaluate import HOTTEST, evaluate, fitted_temperature
from tests.helpers.multi_label import Fixed, task


def pairwise(scores: list[float], labels: list[int]) -> float:
    """How often a positive example has the higher score, ties counting half."""
    positive = [s for s, y in zip(scores, labels, strict=True) if y]
    negative = [s for s, y in zip(scores, labels, strict=True) if not y]
    return sum((p > n) + 0.5 * (p == n) for p in positive for n in negative) / (
        len(positive) * len(negative)
    )


@pytest.mark.parametrize("labels", [1, 3])
def test_auc_is_the_share_of_correctly_ordered_pairs(labels):
    torch.manual_seed(0)
    outputs = torch.randint(-4, 5, (40, labels)).float()  # whole numbers: there are ties
    targets = torch.randint(0, 2, (40, labels))
    found = evaluate(Fixed(), *task(outputs, targets), torch.device("cpu"))
    wanted = [pairwise(outputs[:, i].tolist(), targets[:, i].tolist()) for i in range(labels)]
    assert [found[f"auc/l{i}"] for i in range(labels)] == pytest.approx(wanted, abs=1e-12)
    assert found["auc"] == pytest.approx(sum(wanted) / labels, abs=1e-12)
    predicted = (outputs > 0).long()
    hits = (predicted * targets).sum(0).double()
    f1 = 2 * hits / (predicted.sum(0) + targets.sum(0))
    assert found["macro_f1"] == pytest.approx(float(f1.mean()))


def test_a_label_with_only_positive_or_negative_examples_has_no_auc():
    targets = torch.tensor([[0, 1, 0], [1, 1, 0], [1, 1, 0]])
    outputs = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    found = evaluate(Fixed(), *task(outputs, targets), torch.device("cpu"))
    assert found["auc/l0"] == found["auc"] == 0.5
    assert math.isnan(found["auc/l1"])
    assert math.isnan(found["auc/l2"])


@pytest.mark.parametrize("wanted", [0.3, 4.0])
@pytest.mark.parametrize("several", [False, True])
def test_calibration_recovers_a_known_temperature(wanted, several):
    """Labels are drawn from the probabilities of scores, which are then scaled."""
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(20_000, 3, generator=generator)
    if several:
        targets = torch.bernoulli(scores.sigmoid(), generator=generator).long()
    else:
        targets = torch.multinomial(scores.softmax(1), 1, generator=generator)[:, 0]
    assert fitted_temperature(scores * wanted, targets) == pytest.approx(wanted, rel=0.05)


def test_calibration_on_few_examples_makes_no_prediction_certain():
    """All are predicted correctly: without smoothing no temperature would be low enough."""
    targets = torch.arange(10) % 3
    scores = torch.nn.functional.one_hot(targets, 3).float()
    likely = (scores / fitted_temperature(scores, targets)).softmax(1).max(1).values
    assert 0.33 <= float(likely.min()) <= 1 - 0.5 * 12**-1.5


def test_calibration_treats_yes_and_no_alike():
    targets = torch.tensor([[1, 0], [1, 1], [0, 1], [1, 1], [1, 0]])
    scores = torch.tensor([[3.0, -1], [2, 2], [1, 4], [-1, 2], [2, -3]])
    yes, no = fitted_temperature(scores, targets), fitted_temperature(-scores, 1 - targets)
    assert yes == pytest.approx(no)


def test_the_calibration_temperature_has_limits():
    """Scores that say nothing, or the opposite, or are all equal."""
    targets = torch.arange(300) % 3
    right = torch.nn.functional.one_hot(targets, 3).float()
    for scores in (-right, torch.zeros(300, 3), right[torch.randperm(300)], 1e20 * right):
        assert 0.999 / HOTTEST <= fitted_temperature(scores, targets) <= 1.001 * HOTTEST
