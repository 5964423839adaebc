"""A source of data from outside of the package, and links that leave a source."""

import sys
from typing import ClassVar, Self

import numpy as np
import pytest

from attittud_lab.data import source as sources
from attittud_lab.data.source import Columns, Listing, register_source
from attittud_lab.errors import InputError
from tests.helpers.data_sets import encoded, pictures, read_configuration

__all__ = ["pictures"]  # fixtures


def test_a_source_can_be_registered_from_outside_of_the_package(monkeypatch):
    monkeypatch.setattr(sources, "_SOURCES", list(sources._SOURCES))
    pixels = np.random.default_rng(0).integers(0, 256, (120, 1, 8, 8)).astype(np.uint8)

    @register_source
    class Noise:
        """Images without a meaning."""

        splits: ClassVar[list[str]] = []

        @classmethod
        def open(cls, name: str) -> Self | None:
            return cls() if name == "noise" else None

        def columns(self, split: str | None) -> list[str]:
            return []

        def listing(self, split: str | None, columns: Columns) -> Listing:
            labels = np.arange(120) % 2
            return Listing("noise", "image", 120, lambda rows: pixels[rows], labels, ["a", "b"])

    data = read_configuration("data: {primary: {path: noise}, auxiliary: {digits: digits}}")
    assert data.primary.classes == ["a", "b"]
    assert [len(part) for part in data.all_examples] == [72, 24, 24, 1797]
    rows = data.record["primary"]["test"]["rows"]
    assert data.test.inputs.numpy().tolist() == pixels[rows].tolist()


def test_links_out_of_the_folder_are_refused(pictures, tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.png").write_bytes(encoded(200))
    (tmp_path / "private" / "secret.csv").write_text("text,label\none,a\ntwo,b\n")
    (tmp_path / "tables").mkdir()
    for folder, name, target in (
        (pictures, "cat/link.png", "secret.png"),
        (pictures, "cat/inner", "."),
        (pictures, "class", "."),
        (tmp_path / "tables", "train.csv", "secret.csv"),
    ):
        link = folder / name
        link.symlink_to(tmp_path / "private" / target)
        with pytest.raises(InputError, match=f"{link}: is a link out of {folder}"):
            read_configuration(f"data: {{primary: {folder}}}")
        link.unlink()


def test_without_datasets_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"needs the package 'datasets'.*attittud\[hub\]"):
        read_configuration("data: {primary: 'hf:owner/name'}")
