"""What auxiliary labels mean: a shift is found, random labels say nothing, and groups stay
whole.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attittud_lab.portfolio.translations import Channel, draw_counts, information, translate
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


def test_a_shift_is_the_clearest_translation() -> None:
    content = table(example(shifted))
    assert {(one["label"], one["class"]) for one in content["sentences"]} == {
        ("x", "c"),
        ("y", "a"),
        ("z", "b"),
    }
    (openness,) = content["openness"]
    assert openness["low"] > 0.8
    assert all(entry["low"] <= entry["value"] <= entry["high"] for entry in content["entries"])
    for number in range(CLASSES):
        rows = [entry for entry in content["entries"] if entry["class"] == number]
        columns = [entry for entry in content["entries"] if entry["label"] == number]
        assert sum(entry["value"] for entry in rows) == pytest.approx(1)
        assert sum(entry["meaning"] for entry in columns) == pytest.approx(1)


def test_random_labels_have_no_meaning() -> None:
    for seed in range(10):
        content = table(example(tossed, seed))
        assert content["sentences"] == []
        assert max(abs(entry["value"] - 1 / CLASSES) for entry in content["entries"]) < 0.15


def test_a_source_that_does_not_follow_the_primary_classes_has_a_small_openness() -> None:
    openness = []
    for seed in range(10):
        problem = example(shifted, seed)
        tossed_labels = np.random.default_rng(seed).integers(CLASSES, size=PRIMARY)
        content = table(replace(problem, labels=tossed_labels))
        assert content["sentences"] == []
        openness += content["openness"]
    assert np.mean([channel["value"] for channel in openness]) < 0.4
    assert np.mean([channel["low"] == 0 for channel in openness]) >= 0.8


def test_several_labels_are_questions_of_their_own() -> None:
    def two(right: Array, generator: Any) -> Array:
        """Whether the class is not a, and a coin toss."""
        coins = generator.integers(2, size=len(right))
        return np.stack([right != 0, coins, coins], axis=1).astype(np.int64)

    content = table(example(two, several=True))
    assert [channel["of"] for channel in content["openness"]][:2] == [["a", "x"], ["b", "x"]]
    values = {(entry["class"], entry["label"]): entry["value"] for entry in content["entries"]}
    assert len(values) == 9
    assert values[0, 0] < values[1, 0]  # examples with a are rarely called x
    assert {one["class"] for one in content["sentences"]} <= {"b", "c"}
    assert all(one["label"] == "x" for one in content["sentences"])


def test_groups_are_drawn_whole_and_few_groups_give_no_interval() -> None:
    groups = [f"g{row % 12}" for row in range(PRIMARY)]
    counts = draw_counts(PRIMARY, groups, 0)
    assert counts is not None
    assert (counts.reshape(-1, 5, 12) == counts[:, None, :12]).all()
    assert (counts.sum(axis=1) == PRIMARY).all()
    content = table(example(shifted), [f"g{row % 3}" for row in range(PRIMARY)])
    assert content["openness"][0]["low"] is None
    assert content["sentences"] == []


def test_the_draw_of_every_example_once_is_the_channel_itself() -> None:
    problem = example(shifted)
    source = problem.sources["web"]
    models = SourceModels(problem.sources, 0)
    entries = translate(problem, source, models, None, 0)["entries"]
    matrix = np.array([entry["value"] for entry in entries]).reshape(CLASSES, CLASSES)
    probabilities = np.exp(models.model("web").scores(problem.features))
    shares = np.bincount(source.labels) / len(source.labels)
    openness = table(problem)["openness"][0]["value"]
    channel = Channel(matrix, openness, shares, probabilities, problem.labels)
    drawn = channel.drawn(np.ones((1, PRIMARY)))
    assert drawn.openness[0] == pytest.approx(openness, abs=0.05)
    np.testing.assert_allclose(drawn.matrix[0], matrix, atol=0.03)


def test_information_is_zero_for_independent_labels_and_the_entropy_for_equal_ones() -> None:
    sums = np.stack([np.outer([1, 2, 3], [4, 5, 6]), np.diag([2.0, 2.0, 2.0])])
    np.testing.assert_allclose(information(sums), [0, np.log(3)], atol=1e-12)
