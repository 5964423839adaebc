"""How a path finds its source, a source from outside, and what does not fit into memory."""

import json
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from attittud_lab import cli
from attittud_lab.data import source as sources
from attittud_lab.data.source import Columns, Listing, register_source
from attittud_lab.errors import InputError
from tests.helpers.data_sets import encoded, pictures, read_configuration

__all__ = ["pictures"]  # fixtures


# ------------------------------------------------------------------------------------- from outside


def test_a_source_can_be_registered_from_outside_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "_SOURCES", list(sources._SOURCES))

    @register_source
    class Stripes:
        """Images of stripes that lie or stand."""

        def __init__(self, count: int) -> None:
            self.count = count

        @classmethod
        def open(cls, name: str) -> Self | None:
            return cls(int(name.removeprefix("stripes:"))) if name.startswith("stripes:") else None

        @property
        def splits(self) -> list[str]:
            return []

        def columns(self, split: str | None) -> list[str]:
            return []

        def listing(self, split: str | None, columns: Columns) -> Listing:
            pixels = (
                np.random.default_rng(0).integers(0, 99, (self.count, 1, 8, 8)).astype(np.uint8)
            )
            pixels[::2, :, ::2] += 150
            pixels[1::2, :, :, ::2] += 150
            labels = np.arange(self.count) % 2
            return Listing(
                "stripes",
                "image",
                self.count,
                lambda rows: list(pixels[rows]),
                labels,
                ["lie", "stand"],
            )

    (tmp_path / "job.yaml").write_text(
        f"data: {{primary: {{path: 'stripes:120'}}, auxiliary: {{digits: digits}}}}\nmodel: mlp\nstrategy: multitask\n"
        "training: {guided: {steps: 40, primary_batch: 16, batch_size: 8}, finetune: {steps: 5, primary_batch: 16}}\n"
        f"output: {tmp_path}/runs\n"
    )
    with pytest.raises(SystemExit) as left:
        cli.main(["train", str(tmp_path / "job.yaml"), "--quiet"])
    assert left.value.code == 0, capsys.readouterr().err
    result = json.loads((tmp_path / "runs/job/multitask/seed-0/result.json").read_text())
    assert result["examples"] == {
        "train": 72,
        "validation": 24,
        "test": 24,
        "auxiliary/digits": 1797,
    }
    assert result["test"]["accuracy"] > 0.8


def test_links_out_of_the_folder_are_refused(pictures: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(encoded(200))
    link = pictures / "cat" / "link.png"
    link.symlink_to(secret)
    with pytest.raises(InputError, match=r"link\.png: is a link out of"):
        read_configuration(f"data: {{primary: {pictures}}}")
    link.unlink()
    (tmp_path / "elsewhere").mkdir()
    (pictures / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="linked: is a link out of"):
        read_configuration(f"data: {{primary: {pictures}}}")
    tables = tmp_path / "tables"
    tables.mkdir()
    (tmp_path / "private.csv").write_text("text,label\none,a\ntwo,b\n")
    (tables / "train.csv").symlink_to(tmp_path / "private.csv")
    with pytest.raises(InputError, match=r"train\.csv: is a link out of"):
        read_configuration(f"data: {{primary: {tables}}}")
