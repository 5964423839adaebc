"""Tables of numbered rows, and the parts that are read from them."""

from pathlib import Path
from typing import Any

from attittud_lab.config.load import loads
from attittud_lab.config.schema import DataConfig
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.data.texts import Reader
from attittud_lab.models.text import HashedWords
from tests.helpers.data_files import write_columns

Row = tuple[str, Any]


def write(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(exist_ok=True)
    texts, labels = zip(*rows, strict=True)
    return write_columns(path, {"text": texts, "label": labels})


def numbered(first: int, labels: list[Any]) -> list[Row]:
    return [(f"text number {first + n} here", label) for n, label in enumerate(labels)]


def read_primary(primary: str) -> Prepared:
    data: DataConfig = loads(f"data: {{primary: {{{primary}}}}}").data
    return prepare(data, 0, Reader(HashedWords(), 16, pack=False))
