"""What auxiliary labels mean: a shift is found, and random labels say nothing."""

from typing import Any

import numpy as np
import pytest

from attittud_lab.portfolio.translations import draw_counts, information, translate
from attittud_lab.uses.base import SourceModels
from attittud_lab.uses.problem import Problem, SourceData

Array = np.ndarray
PRIMARY, CLASSES = 60, 3


def example(meaning: Any, seed: int = 0, *, several: bool = False) -> Problem:
    """Primary examples, and a source whose labels are `meaning` of the right ones."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(PRIMARY + 500, 8)).astype(np.float32)
    right = features[:, :CLASSES].argmax(axis=1)
    labels = (features[:, :CLASSES] > 0).astype(np.int64) if several else right
    source = SourceData(
        "web", features[PRIMARY:], meaning(right, generator)[PRIMARY:], ["x", "y", "z"]
    )
    return Problem(features[:PRIMARY], labels[:PRIMARY], ["a", "b", "c"], several, {"web": source})


def table(problem: Problem, groups: list[str] | None = None) -> dict[str, Any]:
    counts = draw_counts(PRIMARY, groups, 0)
    return translate(problem, problem.sources["web"], SourceModels(problem.sources, 0), counts, 0)


def shifted(right: Array, _: Any) -> Array:
    return (right + 1) % CLASSES


def tossed(right: Array, generator: Any) -> Array:
    return np.asarray(generator.integers(CLASSES, size=len(right)))


def test_a_shift_is_the_clearest_translation():
    content = table(example(shifted))
    expected = {("x", "c"), ("y", "a"), ("z", "b")}
    assert {(one["label"], one["class"]) for one in content["sentences"]} == expected
    (openness,) = content["openness"]
    assert openness["low"] > 0.8
    assert all(entry["low"] <= entry["value"] <= entry["high"] for entry in content["entries"])
    for number in range(CLASSES):
        rows = [entry for entry in content["entries"] if entry["class"] == number]
        columns = [entry for entry in content["entries"] if entry["label"] == number]
        assert sum(entry["value"] for entry in rows) == pytest.approx(1)
        assert sum(entry["meaning"] for entry in columns) == pytest.approx(1)


def test_random_labels_have_no_meaning():
    for seed in range(10):
        content = table(example(tossed, seed))
        assert content["sentences"] == []
        assert max(abs(entry["value"] - 1 / CLASSES) for entry in content["entries"]) < 0.15


def test_groups_are_drawn_whole_and_few_groups_give_no_interval():
    groups = [f"g{row % 12}" for row in range(PRIMARY)]
    counts = draw_counts(PRIMARY, groups, 0)
    assert (counts.reshape(-1, 5, 12) == counts[:, None, :12]).all()
    assert (counts.sum(axis=1) == PRIMARY).all()
    content = table(example(shifted), [f"g{row % 3}" for row in range(PRIMARY)])
    assert content["openness"][0]["low"] is None
    assert content["sentences"] == []


def test_information_is_zero_for_independent_labels_and_the_entropy_for_equal_ones():
    sums = np.stack([np.outer([1, 2, 3], [4, 5, 6]), np.diag([2.0, 2.0, 2.0])])
    np.testing.assert_allclose(information(sums), [0, np.log(3)], atol=1e-12)
