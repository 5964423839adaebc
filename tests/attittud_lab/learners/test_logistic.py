"""The solver of logistic regressions, checked against scikit-learn and against copied rows."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from attittud_lab.learners import logistic
from attittud_lab.learners.base import ABSENT, TrainingRows, log_softmax
from attittud_lab.learners.logistic import LogisticRegressions


@pytest.fixture(autouse=True)
def precise(monkeypatch):
    """Solve until nothing changes, so that solutions can be compared."""
    monkeypatch.setattr(logistic, "TOLERANCE", 1e-7)
    monkeypatch.setattr(logistic, "MOST_STEPS", 10_000)


def example(rows, width, classes, seed=0):
    generator = np.random.default_rng(seed)
    features = generator.normal(1.0, 2.0, (rows, width)) * (generator.random((rows, width)) < 0.5)
    labels = generator.integers(0, classes, rows)
    labels[:classes] = range(classes)
    return features, labels


def probabilities(features, weights, intercept):
    return np.exp(log_softmax(features @ weights + intercept))


def solve(features, targets, weights, penalties, several=False):
    rows = TrainingRows(features, targets, several, weights)
    return list(LogisticRegressions(rows).solve(penalties))


@pytest.mark.parametrize(("rows", "width"), [(60, 12), (40, 300)], ids=["direct", "rotated"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
def test_hard_labels_give_the_solution_of_scikit_learn(rows, width, form):
    classes = 4
    features, labels = example(rows, width, classes)
    length = np.sqrt(np.square(features - features.mean(axis=0)).sum(axis=1).mean())
    weights = np.random.default_rng(1).uniform(0.1, 2.0, rows)
    penalties = [0.05, 5.0]
    solutions = solve(form(features), np.eye(classes)[labels], weights, penalties)
    for penalty, (inner, intercept) in zip(penalties, solutions, strict=True):
        oracle = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=100_000)
        oracle.fit(features / length, labels, sample_weight=weights)
        expected = oracle.predict_proba(features / length)
        np.testing.assert_allclose(probabilities(features, inner, intercept), expected, atol=2e-4)


def test_a_soft_target_is_a_row_for_each_class():
    features, _ = example(30, 8, 3)
    targets = np.random.default_rng(2).dirichlet(np.ones(3), 30)
    (soft,) = solve(features, targets, np.ones(30), [0.3])
    copies = np.concatenate([features] * 3)
    hard = np.repeat(np.eye(3), 30, axis=0)
    (copied,) = solve(copies, hard, targets.T.ravel(), [0.3])
    expected = probabilities(features, *copied)
    np.testing.assert_allclose(probabilities(features, *soft), expected, atol=1e-5)


def test_each_of_several_labels_is_a_regression_of_its_own_and_missing_labels_do_not_count():
    features, labels = example(50, 6, 2)
    other = np.random.default_rng(3).integers(0, 2, 50).astype(float)
    other[10:20] = np.nan
    targets = np.stack([labels, other, np.ones(50)], axis=1)
    ((inner, intercept),) = solve(features, targets, np.ones(50), [0.5], several=True)
    length = np.sqrt(np.square(features - features.mean(axis=0)).sum(axis=1).mean())
    logits = features @ inner + intercept
    for column in range(2):
        rows = ~np.isnan(targets[:, column])
        oracle = LogisticRegression(C=2.0, tol=1e-10, max_iter=100_000)
        oracle.fit(features[rows] / length, targets[rows, column])
        expected = oracle.decision_function(features / length)
        np.testing.assert_allclose(logits[:, column], expected, atol=1e-3)
    assert np.ptp(logits[:, 2]) == 0
    assert logits[0, 2] > 3


def test_a_label_without_negative_rows_has_the_odds_of_the_rows_that_have_it():
    """Half a row is added on either side. Rows in which it is missing do not count."""
    features, labels = example(50, 6, 2)
    seldom = np.full(50, np.nan)
    seldom[:8] = 1
    targets = np.stack([labels, seldom], axis=1)
    ((_, intercept),) = solve(features, targets, np.ones(50), [0.5], several=True)
    assert intercept[1] == pytest.approx(np.log(8.5 / 0.5))


def test_a_class_without_rows_is_unlikely_and_does_not_change_the_others():
    present = [0, 3]
    features, labels = example(40, 5, len(present))
    targets = np.eye(5)[np.array(present)[labels]]
    ((inner, intercept),) = solve(features, targets, np.ones(40), [0.5])
    ((compact, compact_intercept),) = solve(features, np.eye(2)[labels], np.ones(40), [0.5])
    absent = np.setdiff1d(range(5), present)
    assert (intercept[absent] == ABSENT).all()
    np.testing.assert_array_equal(inner[:, present], compact)
    np.testing.assert_array_equal(intercept[present], compact_intercept)


@pytest.mark.parametrize("features", [np.ones((6, 3)), np.zeros((6, 0))])
def test_features_that_say_nothing_give_the_shares_of_the_classes(features):
    targets = np.eye(2)[[0, 0, 0, 0, 1, 1]]
    ((inner, intercept),) = solve(features, targets, np.ones(6), [0.5])
    first = probabilities(features, inner, intercept)[0]
    np.testing.assert_allclose(first, [2 / 3, 1 / 3], atol=1e-4)
