"""The linear learner."""

import numpy as np
from scipy import sparse

from attittud_lab.learners.linear import Linear


def test_sparse_and_dense_features_give_the_same_scores():
    generator = np.random.default_rng(0)
    features = (generator.normal(size=(50, 120)) * (generator.random((50, 120)) < 0.2)).astype(
        np.float32
    )
    targets = np.eye(3)[generator.integers(0, 3, 50)]
    learner = Linear()
    settings = learner.settings(several=False)
    fits = [
        list(learner.fits(form(features), targets, np.ones(50), False, settings, seed=0))
        for form in (np.asarray, sparse.csr_matrix)
    ]
    for first, second in zip(*fits, strict=True):
        np.testing.assert_allclose(
            first.scores(features), second.scores(sparse.csr_matrix(features)), atol=1e-3
        )


def test_a_stronger_penalty_gives_weaker_opinions():
    generator = np.random.default_rng(0)
    features = generator.normal(size=(40, 5)).astype(np.float32)
    targets = np.eye(2)[(features[:, 0] > 0).astype(int)]
    learner = Linear()
    settings = sorted(learner.settings(several=False), key=lambda setting: setting["penalty"])
    fits = learner.fits(features, targets, np.ones(40), False, settings, seed=0)
    certainty = [np.exp(fitted.scores(features)).max(axis=1).mean() for fitted in fits]
    assert certainty == sorted(certainty, reverse=True)
    assert certainty[0] > certainty[-1] + 0.1
