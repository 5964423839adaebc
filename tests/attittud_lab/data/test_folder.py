"""Folders of images: classes, splits, odd names, and files that belong to no class."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attittud_lab.errors import InputError
from tests.helpers.data_files import inputs, named, read_path
from tests.helpers.data_sets import encoded, pictures, read_configuration

__all__ = ["pictures"]  # fixtures
LABELS = ["NA", "None", "01", "no", "1.0", "null", "nan", "True", "007", "1e5", "2020-01-01"]


def test_odd_names_of_image_folders_survive(tmp_path: Path) -> None:
    for label in LABELS:
        (tmp_path / label).mkdir()
        Image.new("L", (4, 4)).save(tmp_path / label / "1.png")
    listing = read_path(tmp_path)
    assert [path.parent.name for path in inputs(listing)] == named(listing) == sorted(LABELS)


def test_images_are_named_by_their_files(pictures: Path) -> None:
    listing = read_path(pictures)
    assert listing.named(np.array([0, listing.count - 1])) == [
        str(path) for path in (inputs(listing)[0], inputs(listing)[-1])
    ]


def test_splits_in_capitals_are_not_read_as_classes(tmp_path: Path) -> None:
    for split in ("Train", "Test"):
        for label in ("cat", "dog"):
            (tmp_path / split / label).mkdir(parents=True)
            Image.new("L", (4, 4)).save(tmp_path / split / label / "1.png")
    with pytest.raises(InputError, match="its folders Test, Train would be read as classes"):
        read_path(tmp_path)


def test_images_outside_of_a_class_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cat").mkdir()
    for path in ("cat/1.png", "2.png", "3.png"):
        Image.new("L", (4, 4)).save(tmp_path / path)
    assert read_path(tmp_path).count == 1 and "2 images are in no class folder" in caplog.text


# ------------------------------------------------------------------------------------------ layouts


def test_a_folder_of_images_is_read(pictures: Path) -> None:
    data = read_configuration(
        f"data: {{primary: {{path: {pictures}, train: 12, validation: 6, test: 6}}, auxiliary: {{rest: {pictures}}}}}"
    )
    assert (
        data.primary.classes == ["cat", "dog", "no"]
        and data.primary.examples.inputs.dtype == torch.uint8
    )
    assert data.primary.examples.inputs.shape == (12, 3, 8, 8)
    assert data.primary.examples.targets is not None
    assert torch.bincount(data.primary.examples.targets).tolist() == [4, 4, 4]
    # The first pixel says which image it is: labels and images belong together, and nothing is in
    # two sets.
    for part in (data.primary.examples, data.validation, data.test):
        assert part.targets is not None and torch.equal(
            part.inputs[:, 0, 0, 0] // 10, part.targets.to(torch.uint8)
        )
    numbers = [
        part.inputs[:, 0, 0, 0].tolist()
        for part in (data.primary.examples, data.validation, data.test)
    ]
    rest = data.auxiliary["rest"].examples.inputs[:, 0, 0, 0].tolist()
    assert len({*numbers[0], *numbers[1], *numbers[2], *rest}) == 30 and len(rest) == 6


def test_a_folder_with_its_own_splits_is_read(pictures: Path, tmp_path: Path) -> None:
    root = tmp_path / "split"
    root.mkdir()
    pictures.rename(root / "train")
    (root / "test" / "dog").mkdir(parents=True)
    (root / "test" / "dog" / "x.png").write_bytes(encoded(99))
    data = read_configuration(f"data: {{primary: {{path: {root}, exclude: [no]}}}}")
    assert (
        data.primary.classes == ["cat", "dog"]
        and len(data.test) == 1
        and data.test.targets is not None
    )
    assert (
        data.test.targets.tolist() == [1]
        and len(data.validation) == 4
        and len(data.primary.examples) == 16
    )


def test_a_folder_with_the_name_of_an_image_is_not_read_as_one(pictures: Path) -> None:
    (pictures / "cat" / "old.png").mkdir()
    data = read_configuration(f"data: {{primary: {pictures}}}")
    assert sum(map(len, (data.primary.examples, data.validation, data.test))) == 30
