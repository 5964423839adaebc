"""A source of data from outside of the package."""

from typing import ClassVar, Self

import numpy as np
import pytest

from attittud_lab.data import source as sources
from attittud_lab.data.source import Columns, Listing, register_source
from tests.helpers.data_sets import read_configuration


def test_a_source_can_be_registered_from_outside_of_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
            return Listing(
                "noise", "image", 120, lambda rows: list(pixels[rows]), labels, ["a", "b"]
            )

    data = read_configuration("data: {primary: {path: noise}, auxiliary: {digits: digits}}")
    assert data.primary.classes == ["a", "b"]
    assert [len(part) for part in (data.primary.examples, data.validation, data.test)] == [
        72,
        24,
        24,
    ]
    rows = data.record["primary"]["test"]["rows"]
    assert data.test.inputs.numpy().tolist() == pixels[rows].tolist()
    assert len(data.auxiliary["digits"].examples) == 1797
