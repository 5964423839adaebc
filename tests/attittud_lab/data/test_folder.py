"""Folders of images: classes, splits, odd names, and files that belong to no class."""

import os
import shutil

import pytest
import torch

from attittud_lab.errors import InputError
from tests.helpers.data_sets import encoded, pictures, read_configuration

__all__ = ["pictures"]  # fixtures


def test_a_folder_of_images_is_read_without_copies_in_other_folders(pictures, tmp_path):
    copy = shutil.copytree(pictures, tmp_path / "copy")
    for image in copy.rglob("*.png"):
        image.rename(image.with_stem(f"renamed-{image.stem}"))
    primary = f"{{path: {pictures}, train: 12, validation: 6, test: 6}}"
    data = read_configuration(f"data: {{primary: {primary}, auxiliary: {{rest: {copy}}}}}")
    assert data.primary.classes == ["cat", "dog", "no"]
    assert data.primary.examples.inputs.dtype == torch.uint8
    assert data.primary.examples.inputs.shape == (12, 3, 8, 8)
    assert torch.bincount(data.primary.examples.targets).tolist() == [4, 4, 4]
    # The first pixel says which image it is: labels and images belong together, and nothing is in
    # two sets.
    for part in (data.primary.examples, data.validation, data.test):
        assert torch.equal(part.inputs[:, 0, 0, 0] // 10, part.targets.to(torch.uint8))
    inputs = torch.cat([part.inputs for part in data.all_examples])
    assert len(inputs[:, 0, 0, 0].unique()) == len(inputs) == 30
    assert len(data.auxiliary["rest"].examples) == 6
    assert data.record["auxiliary"]["rest"]["left_out_as_primary"] == 24


def test_a_folder_with_its_own_splits_is_read(pictures, tmp_path):
    root = tmp_path / "split"
    root.mkdir()
    pictures.rename(root / "train")
    (root / "test" / "dog").mkdir(parents=True)
    (root / "test" / "dog" / "x.png").write_bytes(encoded(99))
    data = read_configuration(f"data: {{primary: {{path: {root}, exclude: [no]}}}}")
    assert data.primary.classes == ["cat", "dog"]
    assert len(data.test) == 1
    assert data.test.targets.tolist() == [1]
    assert len(data.validation) == 4
    assert len(data.primary.examples) == 16


def test_a_class_whose_name_is_not_utf_8_is_refused(pictures):
    """An image may have any name."""
    image = next((pictures / "dog").iterdir())
    image.rename(pictures / "dog" / os.fsdecode(b"\xff.png"))
    job = f"data: {{primary: {pictures}}}"
    read_configuration(job)
    (pictures / "dog").rename(pictures / os.fsdecode(b"dog\xff"))
    with pytest.raises(InputError, match=r"dog.*rename"):
        read_configuration(job)
