"""The use *translated*."""

import numpy as np
import pytest
import torch

from attittud import LabelChannel
from attittud_lab.learners import find_learner
from attittud_lab.uses.alone import Alone
from attittud_lab.uses.base import Fitting, SourceModels
from attittud_lab.uses.problem import Problem, SourceData
from attittud_lab.uses.translated import Translated, Translation, label_shares

LEARNER = find_learner("linear")
SETTING = {"penalty": 0.1, "weight": 1.0}


def example(meaning, rows=30, several=False):
    """Primary rows, and a source whose labels are `meaning` of the right ones."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(1500, 60)).astype(np.float32)
    right = features[:, :3].argmax(axis=1)
    labels = (features[:, :3] > 0).astype(int) if several else right
    source = SourceData("source", features[600:], meaning(right, generator)[600:], list("xyz"))
    problem = Problem(features[:rows], labels[:rows], list("abc"), several, {"source": source})
    return problem, features[rows:600], labels[rows:600]


def shifted(right, _):
    return (right + 1) % 3


def tossed(right, generator):
    return generator.integers(0, 3, len(right))


def constant(right, _):
    return np.zeros_like(right)


def fit(problem, learner=LEARNER, setting=SETTING):
    models = SourceModels(problem.sources, 0)
    sources = list(problem.sources.values())
    return next(Translated().fits(Fitting(problem, sources, models, learner, [setting], 0)))


def alone(problem):
    settings = [{"penalty": SETTING["penalty"]}]
    return next(Alone().fits(Fitting(problem, [], SourceModels({}, 0), LEARNER, settings, 0)))


def translation(problem):
    models = SourceModels(problem.sources, 0)
    return Translation.estimate(problem.sources["source"], problem, models, 0)


def accuracy(used, features, labels):
    return (used.scores(features).argmax(axis=1) == labels).mean()


def test_labels_that_are_all_wrong_help():
    problem, features, labels = example(shifted)
    assert translation(problem).weight > 0.5
    expected = accuracy(alone(problem), features, labels) + 0.15
    assert accuracy(fit(problem), features, labels) > expected


@pytest.mark.parametrize("several", [False, True])
def test_closed_channels_leave_the_learner_alone_to_the_bit(several):
    problem, features, _ = example(constant, several=several)
    assert translation(problem).weight == 0
    np.testing.assert_array_equal(fit(problem).scores(features), alone(problem).scores(features))


@pytest.mark.parametrize(("meaning", "low", "high"), [(tossed, 0.0, 0.35), (shifted, 0.85, 1.0)])
def test_openness_says_whether_labels_mean_something(meaning, low, high):
    """The mean over 20 primary sets of 30 rows, since a single small set may be misleading."""
    problem, _, _ = example(meaning, rows=600)
    parts = np.arange(600).reshape(20, 30)
    weights = [translation(problem.rows(part)).weight for part in parts]
    assert low <= np.mean(weights) <= high


def test_targets_are_the_formula():
    """q(c) ∝ p(c|x) C[c, a], computed by hand."""
    problem, _, _ = example(shifted)
    one = translation(problem)
    fitted = alone(problem).fitted
    source = problem.sources["source"]
    matrix = one.channel.matrix.numpy()
    products = np.exp(fitted.scores(source.features)) * matrix[:, source.labels].T
    expected = products / products.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(one.targets(fitted), expected, atol=1e-6)


def test_shares_of_labels():
    features = np.zeros((4, 1), dtype=np.float32)
    one = SourceData("one", features, np.array([0, 2, 2, 2]), list("xyz"))
    np.testing.assert_array_equal(label_shares(one), [0.25, 0, 0.75])
    more = SourceData("more", features, np.array([[1, -1], [0, 1], [0, 1], [0, 0]]), list("xy"))
    np.testing.assert_allclose(label_shares(more), [[0.75, 0.25], [1 / 3, 2 / 3]])


def test_an_auxiliary_row_weighs_as_much_as_its_channel_is_open():
    class Watched(type(LEARNER)):
        def fit(self, rows, setting, seed, start=None):
            self.weights = rows.weights
            return super().fit(rows, setting, seed, start)

    problem, _, _ = example(shifted)
    learner = Watched()
    fit(problem, learner, SETTING | {"weight": 0.3})
    openness = translation(problem).weight
    assert 0 < openness < 0.99
    np.testing.assert_allclose(learner.weights[:30], 1)
    np.testing.assert_allclose(learner.weights[30:], 0.3 * openness)


def test_several_labels_of_a_row_count_by_the_openness_of_their_channels():
    yes, no = [[0.9, 0.1], [0.1, 0.9]], [[0.4, 0.6], [0.6, 0.4]]
    openness = torch.tensor([0.9, 0.3])
    channel = LabelChannel(torch.tensor([yes, no]), openness, torch.full((2, 2), 0.5))
    labels = np.array([[0, 0], [1, 0], [1, 1]])
    source = SourceData("source", np.zeros((3, 1), np.float32), labels, list("xy"))

    class Even:
        def scores(self, features):
            return np.log(np.full((len(features), 2), 0.5))

    first = [0.75 * [0.9, 0.1][x] + 0.25 * [0.4, 0.6][y] for x, y in labels]
    made = Translation(source, channel, several=False).targets(Even())
    np.testing.assert_allclose(made, np.stack([first, 1 - np.array(first)], axis=1), atol=1e-6)
