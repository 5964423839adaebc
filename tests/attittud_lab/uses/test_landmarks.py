"""Fewer columns for the folds."""

import numpy as np
from scipy import sparse

from attittud_lab.learners import find_learner
from attittud_lab.uses import landmarks
from attittud_lab.uses.landmarks import with_fewer_columns
from attittud_lab.uses.problem import Problem, SourceData, training_rows


def example(width=2000, rows=200):
    generator = np.random.default_rng(0)
    features = sparse.random(
        40 + rows, width, density=0.02, format="csr", dtype=np.float32, random_state=0
    )
    labels = generator.integers(0, 3, 40 + rows)
    source = SourceData("source", features[40:], labels[40:], list("abc"), same_classes=True)
    return Problem(features[:40], labels[:40], list("abc"), sources={"source": source})


def test_products_with_landmarks_stay_as_they_are(monkeypatch):
    problem = example()
    reduced = with_fewer_columns(problem, 0)
    everything = [problem.features, problem.sources["source"].features]
    exact = sparse.vstack(everything) @ sparse.vstack(everything).T
    rows = np.concatenate([reduced.features, reduced.sources["source"].features])
    np.testing.assert_allclose(rows @ rows.T, exact.toarray(), atol=1e-4)
    monkeypatch.setattr(landmarks, "AUXILIARY", 20)
    few = with_fewer_columns(problem, 0)
    assert few.features.shape[1] <= 60
    to_primary = few.sources["source"].features @ few.features.T
    np.testing.assert_allclose(to_primary, (everything[1] @ everything[0].T).toarray(), atol=1e-4)


def test_a_model_of_the_primary_rows_does_not_change():
    problem = example()
    reduced = with_fewer_columns(problem, 0)
    train, held_out = np.arange(30), np.arange(30, 40)
    scores = []
    for one in (problem, reduced):
        rows = training_rows(one.rows(train))
        fitted = find_learner("linear").fit(rows, {"penalty": 0.1}, seed=0)
        scores.append(fitted.scores(one.rows(held_out).features))
    np.testing.assert_allclose(*scores, atol=1e-3)
