"""Small images and numbered texts on disk, and configurations that read them."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attittud_lab.config.load import loads
from attittud_lab.config.schema import DataConfig
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.data.texts import Reader
from attittud_lab.models.text import HashedWords
from tests.helpers.data_files import write_columns

Row = tuple[str, Any]


def read_configuration(text: str, seed: int = 0) -> Prepared:
    data: DataConfig = loads(text).data
    return prepare(data, seed, Reader(HashedWords(), 16, pack=False))


def read_primary(settings: str) -> Prepared:
    return read_configuration(f"data: {{primary: {{{settings}}}}}")


def write(path: Path, rows: list[Row]) -> Path:
    """Write texts and their labels."""
    path.parent.mkdir(exist_ok=True)
    texts, labels = zip(*rows, strict=True)
    return write_columns(path, {"text": texts, "label": labels})


def numbered(first: int, labels: list[Any]) -> list[Row]:
    return [(f"text number {first + n} here", label) for n, label in enumerate(labels)]


def encoded(number: int) -> bytes:
    """An image whose first pixel tells its number."""
    pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    pixels[0, 0] = number
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for position, name in enumerate(("cat", "dog", "no")):
        (root / name).mkdir(parents=True)
        for number in range(10):
            (root / name / f"{number}.png").write_bytes(encoded(10 * position + number))
    return root
