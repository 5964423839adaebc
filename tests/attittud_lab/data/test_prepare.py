"""From the configured data to tensors: images of all kinds, and those that are refused."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from attittud_lab.config.load import loads
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.training.train import load_data
from tests.helpers.data_sets import pictures, read_configuration

__all__ = ["pictures"]  # fixtures


def test_images_are_brought_to_one_shape(pictures, tmp_path):
    other = tmp_path / "other"
    for name in "ab":
        (other / name).mkdir(parents=True)
        Image.new("L", (31, 17), 255).save(other / name / f"{name}.jpg")
        Image.new("RGBA", (9, 40), (255, 0, 0, 10)).save(other / name / f"{name}.webp")
    data = read_configuration(f"data: {{primary: {pictures}, auxiliary: {{other: {other}}}}}")
    inputs = data.auxiliary["other"].examples.inputs
    assert inputs.shape == (4, 3, 8, 8) and inputs.float().mean() > 80
    small = read_configuration(f"data: {{primary: {pictures}, image_size: 5}}")
    assert small.primary.examples.inputs.shape[2:] == (5, 5)


def test_the_split_seed_decides_the_split(pictures):
    def train(text: str, seed: int) -> Any:
        text = f"data: {{primary: {{path: {pictures}, train: 9}}, {text}}}"
        return read_configuration(text, seed).record["primary"]["train"]["rows"]

    assert train("seed: 0", 1) == train("seed: 0", 2) != train("seed: 5", 1)
    assert train("seed: null", 1) != train("seed: null", 2)


def test_pooled_examples_keep_their_groups_and_their_words(tmp_path):
    """A portfolio divides them itself: training and validation labels become one set."""
    rows = [f"{'long ' * (n % 7)}word{n},{'ab'[n % 2]},p{n // 4}\n" for n in range(40)]
    (tmp_path / "texts.csv").write_text("text,label,patient\n" + "".join(rows))
    config = loads(
        f"data: {{primary: {{path: {tmp_path}/texts.csv, group: patient}}}}\nmodel: text-cnn"
    )
    plain, pooled = (load_data(config, pooled=pooled) for pooled in (False, True))
    assert plain.groups is None and len(pooled.validation) == 0
    count = len(plain.primary.examples) + len(plain.validation)
    assert len(pooled.primary.examples) == len(pooled.groups or []) == count
    rows = [
        row for part in ("train", "validation") for row in plain.record["primary"][part]["rows"]
    ]
    assert plain.names is None
    assert pooled.names == [f"{tmp_path}/texts.csv, row {row + 1}" for row in rows]
    first = plain.primary.examples
    joined = pooled.primary.examples
    assert torch.equal(joined.lengths, torch.cat([first.lengths, plain.validation.lengths]))
    for part, start in ((first, 0), (plain.validation, len(first))):
        for row in range(len(part)):
            length = int(joined.lengths[start + row])
            assert torch.equal(joined.inputs[start + row, :length], part.inputs[row, :length])
    assert torch.equal(pooled.test.inputs, plain.test.inputs)
    for name in ("validation", "test"):
        empty = loads(
            f"data: {{primary: {{path: {tmp_path}/texts.csv, {name}: 0}}}}\nmodel: text-cnn"
        )
        assert len(getattr(load_data(empty, pooled=True), name)) == 0
        with pytest.raises(InputError, match=f"data.primary.{name}: is 0"):
            load_data(empty)


def test_features_of_a_portfolio_come_from_all_rows_that_train_and_from_no_test_row(tmp_path):
    def write(shift: float, odd: str) -> Prepared:
        random = np.random.default_rng(0)
        rows = [f"{random.normal():.6f},{'ab'[i % 2]},{i % 2}" for i in range(60)]
        tested = [f"{random.normal() + shift:.6f},{odd},{i % 2}" for i in range(20)]
        folder = tmp_path / odd
        folder.mkdir()
        for name, lines in {"train": rows, "test": tested}.items():
            (folder / f"{name}.csv").write_text("\n".join(["x,kind,label", *lines]) + "\n")
        primary = f"{{path: {folder}, overlap: warn, validation: 0.3}}"
        config = loads(f"data: {{kind: table, primary: {primary}}}\nmodel: table-mlp")
        return load_data(config, pooled=True)

    found, other = write(0.0, "a"), write(100.0, "z")
    assert found.record["table"] == other.record["table"] and len(found.primary.examples) == 60
    assert not torch.equal(found.test.inputs, other.test.inputs)
    numbers = found.primary.examples.inputs[:, 0]  # of all 60 rows, not of a part of them
    assert float(numbers.mean()) == pytest.approx(0, abs=1e-5)
    assert float(numbers.std(correction=0)) == pytest.approx(1, abs=1e-4)
