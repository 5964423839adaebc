"""What every learner must do."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load, save
from scipy import sparse

from attittud_lab.learners import (
    TrainingRows,
    find_learner,
    learners,
    plain_fitted,
    restore_fitted,
)


def example(several, rows=90, seed=0):
    """Rows whose first three features say which class or which labels they have."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 8)).astype(np.float32)
    if several:
        targets = (features[:, :3] > 0).astype(float)
        targets[::7, 0] = np.nan
        return features, targets
    return features, np.eye(3)[features[:, :3].argmax(axis=1)]


def fit(name, several=False, seed=0, **changes):
    features, targets = example(several)
    learner = find_learner(name)
    setting = learner.settings(several)[-1]
    rows = TrainingRows(features, targets, several, np.ones(len(features)))
    return learner.fit(replace(rows, **changes), setting, seed)


@pytest.mark.parametrize("several", [False, True], ids=["classes", "labels"])
@pytest.mark.parametrize("name", learners())
def test_it_learns_and_survives_json_and_safetensors(name, several):
    fitted = fit(name, several)
    features, targets = example(several, 300, seed=1)
    scores = fitted.scores(features)
    assert scores.shape == targets.shape
    assert scores.dtype == np.float64
    if several:
        assert np.nanmean((scores > 0) == (targets == 1)) > 0.75
    else:
        assert (scores.argmax(axis=1) == targets.argmax(axis=1)).mean() > 0.65
        np.testing.assert_allclose(np.exp(scores).sum(axis=1), 1)
    plain = json.loads(json.dumps(plain_fitted(fitted)))
    restored = restore_fitted(plain, load(save(fitted.tensors())))
    np.testing.assert_array_equal(restored.scores(features), scores)


@pytest.mark.parametrize("name", learners())
def test_the_same_seed_gives_the_same_numbers(name):
    features, _ = example(False, 50, seed=1)
    np.testing.assert_array_equal(fit(name).scores(features), fit(name).scores(features))


@pytest.mark.parametrize("name", learners())
def test_rows_of_weight_zero_do_not_matter_to_the_predicted_shares(name):
    """Wrong labels of weight 0 leave the model as accurate as it was."""
    features, targets = example(False)
    wrong = np.roll(targets, 1, axis=1)
    both = np.concatenate([features, features])
    weights = np.concatenate([np.ones(len(features)), np.zeros(len(features))])
    fitted = fit(name, features=both, targets=np.concatenate([targets, wrong]), weights=weights)
    new, expected = example(False, 300, seed=1)
    assert (fitted.scores(new).argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.65


@pytest.mark.parametrize("name", [name for name in learners() if not find_learner(name).dense_only])
def test_sparse_features_are_accepted(name):
    features, _ = example(False, 50, seed=1)
    fitted = fit(name, features=sparse.csr_matrix(example(False)[0]))
    scores = fitted.scores(sparse.csr_matrix(features))
    np.testing.assert_allclose(scores, fit(name).scores(features), atol=1e-3)
