"""Models of sources, and columns that they add."""

import numpy as np
from scipy import sparse

from attittud_lab.uses.base import (
    FurtherColumns,
    SourceModels,
    fit_source,
    held_out_loss,
    with_columns,
)
from attittud_lab.uses.problem import SourceData


def source(rows=200, noise=0.0):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(rows, 20)).astype(np.float32)
    labels = features[:, :3].argmax(axis=1)
    wrong = generator.random(rows) < noise
    labels[wrong] = generator.integers(0, 3, wrong.sum())
    return SourceData("source", features, labels, ["a", "b", "c"])


def test_columns_are_added_to_dense_and_sparse_features():
    model = fit_source(source(), 0)
    further = FurtherColumns(model, 2.0)
    features = source(5).features
    # Only differences between the classes of a row matter.
    centred = [row - row.mean() for row in model.scores(features)]
    expected = np.concatenate([features, 2 * np.array(centred)], axis=1)
    added = with_columns(features, [further])
    assert added.dtype == np.float32
    np.testing.assert_allclose(added, expected, rtol=1e-5, atol=1e-5)
    mixed = with_columns(sparse.csr_matrix(features), [further])
    np.testing.assert_allclose(mixed.toarray(), expected, rtol=1e-5, atol=1e-5)
    assert with_columns(features, []) is features


def test_settings_are_chosen_on_examples_that_their_models_have_not_seen():
    """Labels that follow nothing: no model predicts better than chance, ln 2, on new examples."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(100, 60)).astype(np.float32)
    chance = SourceData("chance", features, generator.integers(0, 2, 100), ["a", "b"])
    assert held_out_loss(chance, 0) > np.log(2) - 0.05


def own_meanings(data):
    return SourceModels({"source": data}, 0).own_meanings("source")


def test_own_meanings_say_how_well_a_model_of_a_source_knows_its_labels():
    """Right labels that a model fits mean themselves; coin tosses mean their share."""
    assert (own_meanings(source(600)) > 0.75).all()
    np.testing.assert_allclose(own_meanings(source(3000, noise=1.0)), 1 / 3, atol=0.1)
    assert np.isnan(own_meanings(source(1))).all()
    several = SourceData(
        "web", source(600).features, np.eye(3, dtype=int)[source(600).labels], list("abc")
    )
    assert (own_meanings(several) > 0.6).all()
