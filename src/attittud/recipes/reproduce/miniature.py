"""Made-up data in the layout of CIFAR-10 and CIFAR-100 on the dataset hub: to try an experiment in seconds."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZE = 8


def write_miniature(folder: Path, kind: str) -> Path:
    """A folder of parquet files: `kind` is cifar10 or cifar100. Classes are noisy patterns, so there is something to learn."""
    target = folder / f"miniature-{kind}"
    target.mkdir(parents=True, exist_ok=True)
    if kind == "cifar10":
        # Cats and dogs: enough for 120 to train and 80 to validate.
        for split, counts in (("train", [100 if name in ("cat", "dog") else 12 for name in TEN]), ("test", [20] * 10)):
            labels = np.repeat(np.arange(10), counts)
            _write(target, split, {"label": labels}, {"label": list(TEN)}, labels)
        return target
    fine, coarse = [f"fine{i:02d}" for i in range(8)], ["first", "second"]
    for split, count in (("train", 40), ("test", 10)):
        labels = np.repeat(np.arange(8), count)
        columns = {"fine_label": labels, "coarse_label": labels % 2}
        _write(target, split, columns, {"fine_label": fine, "coarse_label": coarse}, labels)
    return target


def _write(
    folder: Path, split: str, columns: dict[str, np.ndarray], names: dict[str, list[str]], labels: np.ndarray
) -> None:
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet

    random = np.random.default_rng(len(labels))
    patterns = np.random.default_rng(0).integers(0, 256, (int(labels.max()) + 1, SIZE, SIZE, 3))
    images = []
    for label in labels:
        pixels = (0.3 * patterns[label] + 0.7 * random.integers(0, 256, (SIZE, SIZE, 3))).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        images.append({"bytes": file.getvalue(), "path": None})
    order = random.permutation(len(labels))
    features = {column: {"names": names[column], "_type": "ClassLabel"} for column in columns}
    metadata = {"huggingface": json.dumps({"info": {"features": {"img": {"_type": "Image"}, **features}}})}
    table = pa.table(
        {"img": [images[i] for i in order], **{name: values[order] for name, values in columns.items()}}
    ).replace_schema_metadata(metadata)
    parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")
