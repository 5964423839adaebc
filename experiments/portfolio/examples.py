"""Examples of the public data sets and of generated tables, each with the name of the row that it comes from."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

Inputs = np.ndarray | list[str] | dict[str, np.ndarray]
"""Pixels (n x size x size, or x 3), texts, or the columns of a table."""


@dataclass(frozen=True)
class Part:
    """Some examples. Labels are numbers of `classes`, or rows of 0/1 where an example may have several."""

    ids: list[str]
    inputs: Inputs
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Sequence[int] | np.ndarray) -> Part:
        rows = np.asarray(rows, dtype=np.int64)
        inputs: Inputs
        if isinstance(self.inputs, dict):
            inputs = {name: values[rows] for name, values in self.inputs.items()}
        elif isinstance(self.inputs, list):
            inputs = [self.inputs[row] for row in rows]
        else:
            inputs = self.inputs[rows]
        return replace(self, ids=[self.ids[row] for row in rows], inputs=inputs, labels=self.labels[rows])

    def labelled(self, labels: Any, classes: Sequence[str]) -> Part:
        """The same inputs with other labels."""
        return replace(self, labels=np.asarray(labels, dtype=np.int64), classes=tuple(classes))


def generator(purpose: str) -> np.random.Generator:
    """Random numbers of one purpose, so that no choice changes with another."""
    return np.random.default_rng(crc32(purpose.encode()))


def shuffled(rows: Sequence[int] | np.ndarray, purpose: str) -> np.ndarray:
    return generator(purpose).permutation(np.asarray(rows, dtype=np.int64))


def balanced(labels: np.ndarray, sizes: Sequence[int], purpose: str) -> list[np.ndarray]:
    """Rows with equal counts of each class for every size, and all other rows. Rows with label -1 are left out."""
    classes = sorted(set(labels[labels >= 0].tolist()))
    by_class = {number: shuffled(np.flatnonzero(labels == number), f"{purpose}/{number}") for number in classes}
    parts, start = [], 0
    for size in sizes:
        each = size // len(classes)
        if each * len(classes) != size or any(len(own) < start + each for own in by_class.values()):
            counts = [len(own) for own in by_class.values()]
            raise ValueError(f"{purpose}: {list(sizes)} cannot be taken in equal parts from classes of {counts} rows")
        parts.append(np.concatenate([own[start : start + each] for own in by_class.values()]))
        start += each
    return [*parts, np.concatenate([own[start:] for own in by_class.values()])]


def shifted(part: Part, share: float, purpose: str) -> Part:
    """Exactly this share of the labels is replaced by the next class."""
    labels = part.labels.copy()
    touched = shuffled(range(len(part)), purpose)[: round(share * len(part))]
    labels[touched] = (labels[touched] + 1) % len(part.classes)
    return replace(part, labels=labels)


def randomised(part: Part, share: float, purpose: str) -> Part:
    """Exactly this share of the labels is replaced by a random class."""
    labels, random = part.labels.copy(), generator(purpose)
    touched = random.permutation(len(part))[: round(share * len(part))]
    labels[touched] = random.integers(len(part.classes), size=len(touched))
    return replace(part, labels=labels)


class Folder:
    """The folder with the public data sets as Parquet files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.read = cache(self._read)

    def _read(self, data: str, split: str) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        folder = self.root / data
        files = sorted([*folder.glob(f"{split}-*.parquet"), *folder.glob(f"data/{split}-*.parquet")])
        if not files:
            raise SystemExit(f"{folder} has no file {split}-*.parquet; give the folder with all public data sets")
        return pa.concat_tables(pq.read_table(file) for file in files)

    def column(self, data: str, split: str, name: str) -> list[Any]:
        found: list[Any] = self.read(data, split)[name].to_pylist()
        return found

    def images(self, data: str, split: str, rows: np.ndarray, size: int, mode: str = "RGB") -> tuple[list[str], Any]:
        """Names and pixels of some images, averaged down to `size`."""
        from PIL import Image

        table = self.read(data, split)
        column = table["img" if "img" in table.column_names else "image"]
        pixels = []
        for row in rows.tolist():
            with Image.open(io.BytesIO(column[row].as_py()["bytes"])) as image:
                pixels.append(np.asarray(image.convert(mode).resize((size, size), Image.Resampling.BOX)))
        return names(data, split, rows), np.stack(pixels)

    def texts(self, data: str, split: str, rows: np.ndarray, column: str = "text") -> tuple[list[str], list[str]]:
        found = self.column(data, split, column)
        return names(data, split, rows), [found[row] for row in rows.tolist()]


def names(data: str, split: str, rows: np.ndarray) -> list[str]:
    return [f"{data}/{split}/{row}" for row in rows.tolist()]


def first_words(texts: Sequence[str], count: int) -> list[str]:
    """Texts cut after so many words; line breaks of web pages are blanks."""
    return [" ".join(re.sub(r"<br */?>", " ", text).split()[:count]) for text in texts]


def grouped(labels: Sequence[int], groups: Sequence[Sequence[int]]) -> np.ndarray:
    """The group of each label, -1 where it is in none."""
    number = {label: position for position, group in enumerate(groups) for label in group}
    return np.array([number.get(label, -1) for label in labels])


FILTERS, POOLED = 48, 2


def embedded(pixels: np.ndarray) -> np.ndarray:
    """192 features of each image: 48 fixed random filters of 5 x 5 pixels, ReLU, means over the four quarters."""
    import torch
    from torch.nn import functional as F

    filters = torch.from_numpy(generator("filters").standard_normal((FILTERS, 3, 5, 5), dtype=np.float32))
    filters -= filters.mean((1, 2, 3), keepdim=True)
    found = []
    for start in range(0, len(pixels), 256):
        x = torch.from_numpy(pixels[start : start + 256]).float().permute(0, 3, 1, 2) / 128 - 1
        found.append(F.adaptive_avg_pool2d(F.relu(F.conv2d(x, filters)), POOLED).flatten(1))
    return torch.cat(found).numpy().round(4)


HASHED = 256


def hashed_words(texts: Sequence[str]) -> np.ndarray:
    """Log counts of words, hashed into 256 columns."""
    found = np.zeros((len(texts), HASHED), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in re.findall(r"\w+", text.lower()):
            found[row, crc32(word.encode()) % HASHED] += 1
    return np.log1p(found).round(4)


Make = Callable[[Folder], "Built"]


@dataclass(frozen=True)
class Built:
    """The examples of a pair. The product draws the labels of a seed from `pool`; all seeds share the rest."""

    pool: Part
    test: Part
    auxiliary: dict[str, Part]
