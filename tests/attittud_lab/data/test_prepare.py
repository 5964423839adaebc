"""From the configured data to tensors: images of all kinds, and those that are refused."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attittud_lab.config.load import loads
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.models.network import build_model
from attittud_lab.training.train import load_data
from tests.helpers.data_sets import pictures, read_configuration

__all__ = ["pictures"]  # fixtures


def test_images_are_brought_to_one_shape(pictures: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name in "ab":
        (other / name).mkdir(parents=True)
        Image.new("L", (31, 17), 255).save(other / name / f"{name}.jpg")
        Image.new("RGBA", (9, 40), (255, 0, 0, 10)).save(other / name / f"{name}.webp")
    data = read_configuration(f"data: {{primary: {pictures}, auxiliary: {{other: {other}}}}}")
    assert data.auxiliary["other"].examples.inputs.shape == (4, 3, 8, 8)
    assert data.auxiliary["other"].examples.inputs.float().mean() > 80
    assert read_configuration(
        f"data: {{primary: {pictures}, image_size: 5}}"
    ).primary.examples.inputs.shape[2:] == (
        5,
        5,
    )


def test_auxiliary_data_with_the_same_classes_can_share_the_head(pictures: Path) -> None:
    job = f"data: {{primary: {{path: {pictures}, train: 6}}, auxiliary: {{more: {{path: {pictures}, share_head: true, %s}}}}}}"
    data = read_configuration(job % "weight: 1")
    model = build_model(loads("model: {name: mlp, width: 4}").model, data, 0)
    assert data.auxiliary["more"].head == "primary" and list(model.heads) == ["primary"]
    with pytest.raises(
        InputError, match=r"share_head: its classes \(cat, dog\) differ from the primary task's"
    ):
        read_configuration(job % "exclude: [no]")


def test_the_split_seed_decides_the_split(pictures: Path) -> None:
    def train(text: str, seed: int) -> list[int]:
        rows: list[int] = read_configuration(
            f"data: {{primary: {{path: {pictures}, train: 9}}, {text}}}", seed
        ).record["primary"]["train"]["rows"]
        return rows

    assert train("seed: 0", 1) == train("seed: 0", 2) != train("seed: 5", 1)
    assert train("seed: null", 1) != train("seed: null", 2)


# ---------------------------------------------------------------------------------- what is refused


def bomb(width: int, height: int) -> bytes:
    """A PNG of some bytes that announces so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(1000)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(9000, 9000)])
def test_decompression_bomb_is_refused(pictures: Path, size: tuple[int, int]) -> None:
    (pictures / "cat" / "0.png").write_bytes(bomb(*size))
    with pytest.raises(InputError, match=r"0\.png declares .* pixels"):
        read_configuration(f"data: {{primary: {pictures}}}")


def test_classes_that_are_listed_in_another_order_can_share_the_output_layer(
    tmp_path: Path,
) -> None:
    for name, count in (("a", 40), ("b", 20)):
        rows = [f"{name} {n},{'xyz'[n % 3]}\n" for n in range(count)]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(rows))
    source = f"{{path: {tmp_path}/b.csv, classes: [z, x, y], share_head: true}}"
    config = loads(
        f"data: {{primary: {tmp_path}/a.csv, auxiliary: {{other: {source}}}}}\nmodel: text-cnn"
    )
    task = load_data(config).auxiliary["other"]
    assert task.shares_head and task.classes == ["x", "y", "z"]
    assert task.examples.targets is not None and task.examples.targets.tolist() == [
        n % 3 for n in range(20)
    ]


def test_pooled_examples_keep_their_groups_and_their_words(tmp_path: Path) -> None:
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
    assert plain.names is None and pooled.names == [
        f"{tmp_path}/texts.csv, row {row + 1}" for row in rows
    ]
    first = plain.primary.examples
    joined = pooled.primary.examples
    assert (
        joined.lengths is not None
        and first.lengths is not None
        and plain.validation.lengths is not None
    )
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


@pytest.mark.parametrize("own_splits", [False])
def test_features_of_a_portfolio_come_from_all_rows_that_train_and_from_no_test_row(
    tmp_path: Path, own_splits: bool
) -> None:
    def write(shift: float, odd: str) -> Prepared:
        random = np.random.default_rng(0)
        rows = [f"{random.normal():.6f},{'ab'[i % 2]},{i % 2}" for i in range(60)]
        tested = [f"{random.normal() + shift:.6f},{odd},{i % 2}" for i in range(20)]
        parts = (
            {"train": rows[:40], "validation": rows[40:], "test": tested}
            if own_splits
            else {"train": rows}
        )
        folder = tmp_path / f"{own_splits}{odd}"
        folder.mkdir()
        for name, lines in (parts | {"test": tested}).items():
            (folder / f"{name}.csv").write_text("\n".join(["x,kind,label", *lines]) + "\n")
        size = "" if own_splits else ", validation: 0.3"
        config = loads(
            f"data: {{kind: table, primary: {{path: {folder}, overlap: warn{size}}}}}\nmodel: table-mlp"
        )
        return load_data(config, pooled=True)

    found, other = write(0.0, "a"), write(100.0, "z")
    assert found.record["table"] == other.record["table"] and len(found.primary.examples) == 60
    assert not torch.equal(found.test.inputs, other.test.inputs)
    numbers = found.primary.examples.inputs[:, 0]  # of all 60 rows, not of a part of them
    assert float(numbers.mean()) == pytest.approx(0, abs=1e-5) and float(
        numbers.std(correction=0)
    ) == pytest.approx(1, abs=1e-4)


def test_a_validation_file_with_other_columns_does_not_decide_what_a_column_is(
    tmp_path: Path,
) -> None:
    lines = [f"{i / 7:.3f},{'ab'[i % 2]},{i % 2}" for i in range(30)]
    (tmp_path / "train.csv").write_text("\n".join(["x,kind,label", *lines[:20]]) + "\n")
    empty = [
        f"{i / 7 + 9:.3f},,{i % 2},z" for i in range(10)
    ]  # no kind is known, and there is a column more
    (tmp_path / "validation.csv").write_text("\n".join(["x,kind,label,more", *empty]) + "\n")
    text = f"data: {{kind: table, primary: {{path: {tmp_path}, test: 0, overlap: warn}}}}\nmodel: table-mlp"
    found = load_data(loads(text), pooled=True)
    assert [column["kind"] for column in found.record["table"]["columns"]] == ["number", "category"]
    assert len(found.primary.examples) == 30
