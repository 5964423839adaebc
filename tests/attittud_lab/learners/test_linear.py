"""The linear learner."""

import numpy as np

from attittud_lab.learners import TrainingRows
from attittud_lab.learners.linear import Linear


def test_a_stronger_penalty_gives_weaker_opinions():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 5)).astype(np.float32)
    targets = np.eye(2)[(features[:, 0] > 0).astype(int)]
    rows = TrainingRows(features, targets, False, np.ones(40))
    learner = Linear()
    settings = sorted(learner.settings(several=False), key=lambda setting: setting["penalty"])
    fits = learner.fits(rows, settings, seed=0)
    certainty = [np.exp(fitted.scores(features)).max(axis=1).mean() for fitted in fits]
    assert certainty == sorted(certainty, reverse=True)
    assert certainty[0] > certainty[-1] + 0.1
