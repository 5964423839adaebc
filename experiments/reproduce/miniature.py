"""Made-up data in the layout of the dataset hub (CIFAR-10, CIFAR-100, chest X-rays): to try an
experiment in seconds.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attittud_lab.files import write_atomically

if TYPE_CHECKING:
    import pyarrow as pa

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZE = 8
CHEST_XRAY = ("nih_chest_xray", "tiny_imagenet")
"""Folders of the X-rays and of the photographs."""


def write_miniature(folder: Path, kind: str) -> Path:
    """Write parquet files and return their folder: `kind` is cifar10 or cifar100. Classes are noisy
    patterns, so there is something to learn.
    """
    target = folder / f"miniature-{kind}"
    target.mkdir(parents=True, exist_ok=True)
    if kind == "cifar10":
        counts_of = dict.fromkeys(TEN, 12)
        counts_of |= {"cat": 100, "dog": 100}  # enough for 120 to train and 80 to validate
        for split, counts in (("train", [*counts_of.values()]), ("test", [20] * 10)):
            labels = np.repeat(np.arange(10), counts)
            _write(target, split, {"label": labels}, {"label": list(TEN)}, labels)
        return target
    fine = [f"fine{i:02d}" for i in range(8)]
    coarse = ["first", "second"]
    for split, count in (("train", 40), ("test", 10)):
        labels = np.repeat(np.arange(8), count)
        columns = {"fine_label": labels, "coarse_label": labels % 2}
        _write(target, split, columns, {"fine_label": fine, "coarse_label": coarse}, labels)
    return target


def write_chest_xray(folder: Path) -> Path:
    """Write X-rays with five findings, several of a patient, in three splits, and photographs of
    ten classes; return the folder of both.
    """
    import pyarrow as pa

    target = folder / "miniature-chest-xray"
    x_rays = target / CHEST_XRAY[0]
    photographs = target / CHEST_XRAY[1]
    x_rays.mkdir(parents=True, exist_ok=True)
    photographs.mkdir(parents=True, exist_ok=True)
    patterns = np.random.default_rng(0).integers(0, 256, (5, SIZE, SIZE, 3))
    for first, (split, count) in enumerate((("train", 120), ("validation", 60), ("test", 60))):
        random = np.random.default_rng(first)
        labels = (random.random((count, 5)) < 0.3).astype(np.int8)
        images = _images(np.tensordot(labels, patterns, 1) / 3, random)
        columns = {
            "image": images,
            "labels": labels.tolist(),
            "patient": 1000 * first + np.arange(count) // 4,
        }
        names = ["Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion"]
        table = pa.table(columns).replace_schema_metadata({"class_names": json.dumps(names)})
        save_table(table, x_rays / f"{split}-00000-of-00001.parquet")
    labels = np.repeat(np.arange(10), 8)
    _write(photographs, "train", {"label": labels}, {"label": list(TEN)}, labels)
    return target


def _write(
    folder: Path,
    split: str,
    columns: dict[str, np.ndarray],
    names: dict[str, list[str]],
    labels: np.ndarray,
) -> None:
    import pyarrow as pa

    random = np.random.default_rng(len(labels))
    patterns = np.random.default_rng(0).integers(0, 256, (int(labels.max()) + 1, SIZE, SIZE, 3))
    images = _images(patterns[labels], random)
    features: dict[str, Any] = {"img": {"_type": "Image"}}
    for column, classes in names.items():
        features[column] = {"names": classes, "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"img": images} | columns).take(random.permutation(len(labels)))
    table = table.replace_schema_metadata(metadata)
    save_table(table, folder / f"{split}-00000-of-00001.parquet")


def save_table(table: pa.Table, path: Path) -> None:
    """Write a table in one instant: processes that share the runs all write these files, while
    others read them.
    """
    from pyarrow import parquet

    content = io.BytesIO()
    parquet.write_table(table, content)
    write_atomically(path, content.getvalue())


def _images(signals: np.ndarray, random: np.random.Generator) -> list[dict[str, bytes | None]]:
    """Encode images of 30 % signal (n x size x size x 3) and 70 % noise, as a parquet column."""
    from PIL import Image

    images: list[dict[str, bytes | None]] = []
    for signal in signals:
        pixels = 0.3 * signal + 0.7 * random.integers(0, 256, (SIZE, SIZE, 3))
        pixels = pixels.clip(0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        images.append({"bytes": file.getvalue(), "path": None})
    return images
