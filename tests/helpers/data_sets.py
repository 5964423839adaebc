"""Small images and texts on disk, and configurations that read them."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attittud_lab.config.load import loads
from attittud_lab.config.schema import DataConfig
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.data.texts import Reader
from attittud_lab.models.text import HashedWords


def read_configuration(text: str, seed: int = 0) -> Prepared:
    data: DataConfig = loads(text).data
    return prepare(data, seed, Reader(HashedWords(), 16, pack=False))


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
