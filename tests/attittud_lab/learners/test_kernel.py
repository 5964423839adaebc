"""The kernel learner."""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel

from attittud_lab.learners import TrainingRows
from attittud_lab.learners.kernel import Kernel, gaussian, median_distance


def rows_with(features, labels):
    return TrainingRows(features, np.eye(labels.max() + 1)[labels], False, np.ones(len(labels)))


def rings(rows, seed=0):
    """Two classes that no line separates: points near the centre, and points around them."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 2)).astype(np.float32)
    return features, (np.square(features).sum(axis=1) > 1.4).astype(int)


def test_it_separates_what_no_line_separates():
    features, labels = rings(150)
    new, expected = rings(500, seed=1)
    setting = {"penalty": 0.04, "width": 1.0}
    fitted = Kernel().fit(rows_with(features, labels), setting, 0)
    accuracy = (fitted.scores(new).argmax(axis=1) == expected).mean()
    straight = LogisticRegression().fit(features, labels).score(new, expected)
    assert accuracy > 0.93 > straight + 0.2


def test_its_solution_is_the_one_of_kernel_logistic_regression():
    """The best weights v have K v = (targets − predictions) / penalty, class by class."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 5)).astype(np.float32)
    labels = generator.integers(0, 3, 40)
    setting = {"penalty": 0.5, "width": 0.6}
    fitted = Kernel().fit(rows_with(features, labels), setting, 0)
    gamma = 1 / (2 * (0.6 * median_distance(features)) ** 2)
    oracle_kernel = rbf_kernel(features.astype(np.float64), gamma=gamma)
    np.testing.assert_allclose(gaussian(features, features, fitted.width), oracle_kernel, atol=1e-6)
    columns = np.linalg.cholesky(oracle_kernel + 1e-10 * np.eye(40))
    length = np.sqrt(np.square(columns - columns.mean(axis=0)).sum(axis=1).mean())
    oracle = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(columns / length, labels)
    expected = oracle.predict_proba(columns / length)
    np.testing.assert_allclose(np.exp(fitted.scores(features)), expected, atol=0.01)


def test_the_median_distance_is_between_different_rows():
    assert median_distance(np.array([[0.0], [1.0], [4.0]])) == 3
    assert median_distance(np.zeros((3, 1))) == 1
