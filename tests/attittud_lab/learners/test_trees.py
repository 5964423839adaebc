"""Trees: our walk through their arrays gives scikit-learn's numbers."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, GradientBoostingClassifier

from attittud_lab.learners import TrainingRows
from attittud_lab.learners.base import LOWEST
from attittud_lab.learners.trees import Boosting, ExtraTrees, hardened


def example(classes, rows=80):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(rows, 6)).astype(np.float32)
    features[:, 3] = np.round(features[:, 3])
    labels = (features[:, :classes].argmax(axis=1) + (generator.random(rows) < 0.2)) % classes
    new = generator.normal(size=(300, 6)).astype(np.float32)
    new[:, 3] = np.round(new[:, 3])
    return features, labels, generator.uniform(0.5, 2.0, rows), new


@pytest.mark.parametrize("leaf", [1, 3])
def test_extra_trees_predict_as_scikit_learn_does(leaf):
    classes = 3
    features, labels, weights, new = example(classes)
    rows = TrainingRows(features, np.eye(classes)[labels], False, weights)
    fitted = ExtraTrees().fit(rows, {"smallest_leaf": leaf}, seed=3)
    oracle = ExtraTreesClassifier(
        n_estimators=ExtraTrees.trees, min_samples_leaf=leaf, random_state=3
    )
    oracle.fit(features, labels, sample_weight=weights)
    expected = oracle.predict_proba(new)
    np.testing.assert_allclose(np.exp(fitted.scores(new)), expected, atol=2 * LOWEST)


@pytest.mark.parametrize("classes", [2, 3])
def test_boosting_predicts_as_scikit_learn_does(classes):
    features, labels, weights, new = example(classes)
    settings = [{"rounds": 7}, {"rounds": 20}]
    rows = TrainingRows(features, np.eye(classes)[labels], False, weights)
    fits = Boosting().fits(rows, settings, seed=3)
    oracle = GradientBoostingClassifier(
        n_estimators=20, subsample=0.5, max_features="sqrt", random_state=3
    )
    oracle.fit(features, labels, sample_weight=weights)
    stages = list(oracle.staged_predict_proba(new))
    for setting, fitted in zip(settings, fits, strict=True):
        expected = stages[setting["rounds"] - 1]
        np.testing.assert_allclose(np.exp(fitted.scores(new)), expected, atol=1e-9)


@pytest.mark.parametrize("learner", [ExtraTrees(), Boosting()], ids=["extra trees", "boosting"])
def test_classes_and_labels_without_a_choice_are_constant(learner):
    features, labels, weights, new = example(2)
    setting = learner.settings(several=False)[0]

    def scores_of(targets, several=False):
        rows = TrainingRows(features, targets, several, weights)
        return learner.fit(rows, setting, 0).scores(new)

    scores = scores_of(np.eye(4)[np.array([1, 3])[labels]])
    assert (np.exp(scores[:, [0, 2]]) < 1e-3).all()
    only = scores_of(np.eye(2)[np.zeros(80, dtype=int)])
    assert (np.exp(only[:, 0]) > 0.99).all()
    always = np.stack([labels.astype(float), np.ones(80)], axis=1)
    logits = scores_of(always, several=True)
    assert (logits[:, 1] > 3).all()
    assert np.ptp(logits[:, 0]) > 1


def test_a_soft_target_becomes_a_row_for_each_class_with_a_share():
    targets = np.array([[0.25, 0.75], [1.0, 0.0], [0.0, 1.0]])
    rows, classes, shares = hardened(targets, np.array([2.0, 1.0, 0.0]))
    assert rows.tolist() == [0, 0, 1]
    assert classes.tolist() == [0, 1, 0]
    assert shares.tolist() == [0.5, 1.5, 1.0]


def test_a_missing_label_says_nothing_to_the_extra_trees():
    """Six of ten rows lack it, whatever their features are."""
    features, labels, _, new = example(2, rows=400)
    there = np.random.default_rng(1).random(400) < 0.4
    targets = np.stack([labels, np.where(there, labels, np.nan)], axis=1)
    rows = TrainingRows(features, targets, True, np.ones(400))
    logits = ExtraTrees().fit(rows, {"smallest_leaf": 3}, 0).scores(new)
    shares = (1 / (1 + np.exp(-logits))).mean(axis=0)
    assert shares[1] == pytest.approx(shares[0], abs=0.08)
