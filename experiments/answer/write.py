"""Write a pair as files that the product reads, with a job that trains on them."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image

from .folder import DataFolder
from .pair import Examples, Pair, Part

ROOT = Path(__file__).parents[2]
STEPS, LOOKS = 180, 15
BATCH, PRIMARY_BATCH = 64, 32
NETWORKS: dict[str, dict[str, Any]] = {
    "image": {"name": "small-cnn", "width": 16},
    "text": {"name": "text-cnn", "width": 32},
    "table": {"name": "table-mlp", "width": 64, "dropout": 0.1},
    "mlp": {"name": "mlp", "width": 64},
}
"""The networks from scratch, by kind of data or by name."""


def build(name: str, root: Path, out: Path, seed: int) -> Path:
    """Write the pair `name`, made from the data sets below `root`, into the folder `out`/`name`.

    The folder has `job.yaml`, `primary/train.parquet` (the pool from which the product draws the
    labelled examples of the seed), `primary/test.parquet`, and a Parquet file for each auxiliary
    source. Only the job, which is written last, depends on the seed. Returns the folder.
    """
    from . import pairs

    declared = pairs()
    if name not in declared:
        raise SystemExit(f"unknown pair {name!r}; there are {', '.join(declared)}")
    pair = declared[name]
    examples = pair.make(DataFolder(root))
    check(pair, examples)
    folder = out / name
    write_part(examples.pool, folder / "primary" / "train.parquet")
    write_part(examples.test, folder / "primary" / "test.parquet")
    for source, part in examples.auxiliary.items():
        write_part(part, folder / f"{source}.parquet")
    settings = yaml.safe_dump(job(pair, examples, folder, seed), sort_keys=False)
    (folder / "job.yaml").write_text(f"# {pair.about}.\n{settings}", encoding="utf-8")
    return folder


def job(pair: Pair, examples: Examples, folder: Path, seed: int) -> dict[str, Any]:
    """The configuration of a pair, without a strategy. Paths below the checkout are relative."""
    place = folder.resolve()
    if place.is_relative_to(ROOT):
        place = place.relative_to(ROOT)
    train, validation = pair.labels
    auxiliary = {}
    for source, part in examples.auxiliary.items():
        auxiliary[source] = {
            "path": str(place / f"{source}.parquet"),
            "share_head": part.classes == examples.pool.classes,
            "batch_size": BATCH // len(examples.auxiliary),
        }
    primary = {
        "path": str(place / "primary"),
        "train": train,
        "validation": validation,
        "test": None,
    }
    guided = {
        "steps": STEPS,
        "batch_size": BATCH,
        "primary_batch": min(PRIMARY_BATCH, train * 2 // 3),
        "lr": pair.rate,
        "warmup": STEPS // 10,
        "evaluations": LOOKS,
    }
    return {
        "seed": seed,
        "device": "cpu",
        "data": {
            "kind": pair.kind,
            "seed": None,
            "max_length": 64,
            "primary": primary,
            "auxiliary": auxiliary,
        },
        "model": NETWORKS[pair.network or pair.kind],
        "training": {"mode": "joint", "guided": guided},
        "log_every": STEPS,
        "log_layers": False,
        "checkpoint_every": None,
    }


def write_part(part: Part, path: Path) -> None:
    """Write one Parquet file.

    The names of the classes are in its metadata, so that a class without examples is there too.
    """
    columns: dict[str, Any] = {}
    if isinstance(part.inputs, list):
        columns["text"] = part.inputs
    elif isinstance(part.inputs, dict):
        columns |= {name: list(values) for name, values in part.inputs.items()}
    else:
        columns["image"] = [{"bytes": encoded(pixels), "path": None} for pixels in part.inputs]
    columns["label"] = part.labels.tolist()
    table = pa.table(columns)
    names = json.dumps({"label": list(part.classes)})
    table = table.replace_schema_metadata({"class_names": names})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")


def encoded(pixels: np.ndarray) -> bytes:
    """A lossless image file."""
    file = io.BytesIO()
    file_format = "WEBP" if pixels.ndim == 3 else "PNG"
    Image.fromarray(pixels).save(file, file_format, lossless=True, quality=100)
    return file.getvalue()


def checksum(examples: Examples) -> str:
    """A checksum of the names and labels of all examples, part by part."""
    digest = hashlib.sha256()
    for part in examples.parts():
        for name, label in zip(part.ids, part.labels.tolist(), strict=True):
            digest.update(f"{name} {label}\n".encode())
    return digest.hexdigest()[:16]


def check(pair: Pair, examples: Examples) -> None:
    """Refuse examples that are not the declared ones, and leaks from the test examples."""
    actual = checksum(examples)
    if pair.checksum != actual:
        raise SystemExit(
            f"{pair.name}: the examples have checksum {actual}, but {pair.checksum} was declared; "
            "restore the code or the data"
        )
    tested = set(examples.test.ids)
    for part in (examples.pool, *examples.auxiliary.values()):
        if tested & set(part.ids):
            raise SystemExit(f"{pair.name}: examples that it is tested on are also trained on")
