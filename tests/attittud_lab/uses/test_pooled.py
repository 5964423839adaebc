"""The use *pooled*."""

import numpy as np

from attittud_lab.learners import find_learner
from attittud_lab.uses.base import Fitting, SourceModels
from attittud_lab.uses.pooled import Pooled
from attittud_lab.uses.problem import Problem, SourceData


def example():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(400, 5)).astype(np.float32)
    labels = features[:, :3].argmax(axis=1)
    source = SourceData("source", features[30:], labels[30:], list("abc"), same_classes=True)
    return Problem(features[:30], labels[:30], list("abc")), source


def fit(problem, sources, weight=1.0):
    setting = {"penalty": 0.5, "weight": weight}
    models = SourceModels({}, 0)
    fitting = Fitting(problem, sources, models, find_learner("linear"), [setting], 0)
    return next(Pooled().fits(fitting))


def test_weight_one_is_one_training_set_and_a_small_weight_is_nearly_the_primary_data_alone():
    problem, source = example()
    features = problem.features
    pooled = fit(problem, [source]).scores(features)
    both = np.concatenate([features, source.features])
    joint = Problem(both, np.concatenate([problem.labels, source.labels]), list("abc"))
    np.testing.assert_allclose(pooled, fit(joint, []).scores(features), atol=1e-3)
    alone = fit(problem, []).scores(features)
    weak = fit(problem, [source], weight=1e-9).scores(features)
    assert np.abs(np.exp(weak) - np.exp(alone)).max() < 0.1
    assert np.abs(np.exp(pooled) - np.exp(alone)).max() > 0.2


def test_sources_with_other_classes_are_named():
    problem, source = example()
    other = SourceData("topics", source.features, source.labels, ["x", "y", "z"])
    assert Pooled().objection(problem, [source]) is None
    assert "topics" in str(Pooled().objection(problem, [source, other]))
