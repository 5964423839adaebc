"""The use *alone*."""

import numpy as np

from attittud_lab.learners import find_learner
from attittud_lab.uses.alone import Alone
from attittud_lab.uses.base import SourceModels
from attittud_lab.uses.problem import Problem, training_rows


def test_it_is_the_learner_itself():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(30, 50)).astype(np.float32)
    problem = Problem(features, generator.integers(0, 3, 30), list("abc"))
    learner = find_learner("linear")
    settings = learner.settings(several=False)
    models = SourceModels({}, 0)
    fits = Alone().fits(problem, [], models, learner, settings, seed=0)
    expected = learner.fits(training_rows(problem), settings, seed=0)
    for used, fitted in zip(fits, expected, strict=True):
        np.testing.assert_array_equal(used.scores(features), fitted.scores(features))
