"""Tables of numbered rows, and the parts that are read from them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from attittud_lab.config.load import loads
from attittud_lab.config.schema import DataConfig
from attittud_lab.data.prepare import Prepared, prepare
from attittud_lab.data.texts import Reader
from attittud_lab.models.text import HashedWords

Row = tuple[str, Any]


def write(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(
            pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]}),
            path,
        )
    else:
        path.write_text(
            "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
        )
    return path


def numbered(first: int, labels: list[Any]) -> list[Row]:
    return [(f"text number {first + n} here", label) for n, label in enumerate(labels)]


def read_primary(primary: str) -> Prepared:
    data: DataConfig = loads(f"data: {{primary: {{{primary}}}}}").data
    return prepare(data, 0, Reader(HashedWords(), 16, pack=False))
