"""The pairs of the answer: what is built is what was recorded, and the product reads it."""

import zipfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from attittud_lab.config.load import load
from attittud_lab.training.train import load_data
from experiments.answer import build, pairs, write
from experiments.answer.archives import Archives
from experiments.answer.draw import balanced, randomised, shifted
from experiments.answer.pair import BUILDERS, Examples, Pair, Part

WITHOUT_FILES = ["digits_right", "diabetes_measures", "clusters_sources", "rules_random"]


def test_every_builder_is_declared():
    assert pairs().keys() == BUILDERS.keys()


@pytest.mark.parametrize("name", WITHOUT_FILES)
def test_a_pair_is_built_as_recorded_and_read_by_the_product(name, tmp_path):
    folder = build(name, tmp_path / "no-data-needed", tmp_path, seed=0)
    pair = pairs()[name]
    data = load_data(load(folder / "job.yaml"))
    assert (len(data.primary.examples), len(data.validation)) == pair.labels
    assert 150 <= len(data.test) <= 1000


def test_seeds_have_other_labels_and_the_same_test_set(tmp_path):
    records = []
    for seed in (0, 1):
        folder = build("rules_random", tmp_path, tmp_path / str(seed), seed)
        records.append(load_data(load(folder / "job.yaml")).record["primary"])
    assert records[0]["train"]["rows"] != records[1]["train"]["rows"]
    assert records[0]["test"]["rows"] == records[1]["test"]["rows"]


def small_parts():
    labels = np.arange(60) % 3
    ids = [str(row) for row in range(60)]
    pixels = np.random.default_rng(0).integers(0, 256, size=(60, 8, 8, 3), dtype=np.uint8)
    texts = [f"word{row} other" for row in range(60)]
    yield "image", Part(ids, pixels, labels, ("a", "b", "c"))
    yield "image", Part(ids, pixels[..., 0], labels, ("a", "b", "c"))
    yield "text", Part(ids, texts, labels, ("a", "b", "c"))


@pytest.mark.parametrize(("kind", "part"), [*small_parts()])
def test_images_and_texts_survive_being_written(kind, part, tmp_path, monkeypatch):
    """A source of one class alone still has all classes, so it can share the output layer."""
    one_class = part.take(np.flatnonzero(part.labels == 1)[-5:])
    examples = Examples(part.take(range(30)), part.take(range(30, 45)), {"other": one_class})
    checksum = write.checksum(examples)
    pair = Pair("small", "a", kind, "open", (12, 9), 1e-3, checksum, lambda _: examples)
    monkeypatch.setattr("experiments.answer.pairs", lambda: {"small": pair})
    data = load_data(load(build("small", tmp_path, tmp_path, 0) / "job.yaml"))
    assert (len(data.primary.examples), len(data.validation), len(data.test)) == (12, 9, 15)
    assert data.auxiliary["other"].shares_head
    assert data.auxiliary["other"].examples.targets.unique().tolist() == [1]
    if kind == "image":
        pixels = examples.test.inputs[0]
        channels_first = np.moveaxis(pixels, -1, 0) if pixels.ndim == 3 else pixels[None]
        assert np.array_equal(data.test.inputs[0].numpy(), channels_first)


def test_changed_examples_and_leaks_are_refused():
    pair = pairs()["rules_random"]
    examples = pair.make(None)
    fewer = Examples(examples.pool, examples.test.take(range(10)), examples.auxiliary)
    with pytest.raises(SystemExit, match="rules_random"):
        write.check(pair, fewer)
    leaking = Examples(examples.pool, examples.pool, {})
    with pytest.raises(SystemExit, match="rules_random"):
        write.check(replace(pair, checksum=write.checksum(leaking)), leaking)


@pytest.mark.parametrize(("pair", "culprit"), [("nothing", "nothing"), ("groups_fine", "cifar100")])
def test_unknown_pairs_and_missing_data_are_refused(pair, culprit, tmp_path):
    with pytest.raises(SystemExit, match=culprit):
        build(pair, tmp_path, tmp_path, 0)


def test_the_fourth_round_has_the_pairs_that_it_promises():
    held_out = [pair for pair in pairs().values() if pair.held_out]
    assert len(held_out) >= 18
    assert all(20 <= sum(pair.labels) <= 400 for pair in held_out)
    assert {pair.kind for pair in held_out} == {"image", "text", "table"}
    assert 3 * sum(pair.effect == "hurts" for pair in held_out) >= len(held_out)
    assert sum(pair.systematic for pair in held_out) >= 5


def test_tables_and_sentences_are_read_from_archives(tmp_path):
    with zipfile.ZipFile(tmp_path / "statsmodels-0.15.0-any.whl", "w") as wheel:
        wheel.writestr("some/fair.csv", b"a,b\n1,x\nNA,y\n3,z\n")
    columns = Archives(tmp_path).table("statsmodels", "some/fair")
    assert columns["a"].tolist() == [1.0, 3.0]
    assert columns["b"].tolist() == ["x", "z"]
    with pytest.raises(SystemExit, match="mnist"):
        Archives(tmp_path).digits(0)


def test_parts_are_balanced_and_share_no_row():
    labels = np.array([0, 1, 2, -1] * 30)
    first, second, rest = balanced(labels, [30, 15], "test")
    assert Counter(labels[first].tolist()) == {0: 10, 1: 10, 2: 10}
    assert (len(second), len(rest)) == (15, 45)
    assert len({*first, *second, *rest}) == 90
    with pytest.raises(ValueError, match="test"):
        balanced(labels, [93], "test")


def test_labels_are_wrong_as_often_as_asked_for():
    labels = np.arange(1000) % 4
    ids = [str(row) for row in range(1000)]
    part = Part(ids, ["text"] * 1000, labels, ("a", "b", "c", "d"))
    assert (shifted(part, 0.6, "test").labels != labels).sum() == 600
    assert np.array_equal(shifted(part, 1.0, "test").labels, (labels + 1) % 4)
    assert 700 < (randomised(part, 1.0, "test").labels != labels).sum() < 800
    assert (randomised(part, 0.3, "test").labels != labels).sum() <= 300
