"""Read the public data sets: Parquet files in the layout of the public dataset hub."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from .archives import FOLDER, Archives


class DataFolder:
    """The folder that holds `cifar10/`, `cifar100/`, `imdb/` and the others."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.archives = Archives(root / FOLDER)
        self.table = cache(self._table)
        self.column = cache(self._column)

    def _table(self, dataset: str, split: str) -> Any:
        folder = self.root / dataset
        files = [*folder.glob(f"{split}-*.parquet"), *folder.glob(f"data/{split}-*.parquet")]
        if not files:
            raise SystemExit(
                f"{folder} has no file {split}-*.parquet; "
                "give the folder with all public data sets as --data"
            )
        return pa.concat_tables(pq.read_table(file) for file in sorted(files))

    def _column(self, dataset: str, split: str, name: str) -> list[Any]:
        values: list[Any] = self.table(dataset, split)[name].to_pylist()
        return values

    def image(self, dataset: str, split: str, row: int, size: int, mode: str) -> np.ndarray:
        """Pixels of one image, averaged down to `size`."""
        table = self.table(dataset, split)
        column = "img" if "img" in table.column_names else "image"
        data = table[column][row].as_py()["bytes"]
        with Image.open(io.BytesIO(data)) as image:
            small = image.convert(mode).resize((size, size), Image.Resampling.BOX)
            return np.asarray(small)

    def images(
        self, dataset: str, split: str, rows: np.ndarray, size: int, mode: str = "RGB"
    ) -> tuple[list[str], np.ndarray]:
        """Row names and pixels of some images."""
        pixels = [self.image(dataset, split, row, size, mode) for row in rows.tolist()]
        return row_names(dataset, split, rows), np.stack(pixels)

    def texts(
        self, dataset: str, split: str, rows: np.ndarray, column: str = "text"
    ) -> tuple[list[str], list[str]]:
        """Row names and texts."""
        values = self.column(dataset, split, column)
        return row_names(dataset, split, rows), [values[row] for row in rows.tolist()]


def row_names(dataset: str, split: str, rows: Sequence[int] | np.ndarray) -> list[str]:
    """A name for every row, by which leaks between parts are noticed."""
    return [f"{dataset}/{split}/{row}" for row in rows]
