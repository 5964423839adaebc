"""Small images and texts on disk, and configurations that read them."""

import io
import json
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


def encoded(number: int, size: int = 8, format: str = "PNG", mode: str = "RGB") -> bytes:  # noqa: A002 - as Pillow calls it
    """An image whose first pixel tells its number."""
    pixels = np.random.default_rng(number).integers(0, 255, (size, size, 3), dtype=np.uint8)
    pixels[0, 0] = number
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, format)
    return file.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for position, name in enumerate(("cat", "dog", "no")):
        (root / name).mkdir(parents=True)
        for number in range(10):
            (root / name / f"{number}.png").write_bytes(encoded(10 * position + number))
    return root


def write_texts(path: Path, labels: list[str]) -> Path:
    rows = [
        {"text": f'word{number}, "quoted"\nnext line', "label": label}
        for number, label in enumerate(labels)
    ]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        cells = [(row["text"].replace('"', '""'), row["label"]) for row in rows]
        path.write_text(
            f"text{delimiter}label\n"
            + "".join(f'"{text}"{delimiter}{label}\n' for text, label in cells)
        )
    return path
