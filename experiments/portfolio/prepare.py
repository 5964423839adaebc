"""Write the pairs as files that the product reads, with a job for each: `python -m experiments.portfolio.prepare FOLDER`.

FOLDER holds the public data sets as Parquet files in the layout of the public dataset hub: `cifar10/`, `cifar100/`,
`tiny_imagenet/`, `nih_chest_xray/`, `imdb/`, `amazon_helpful/` and `llm/`. The product draws the labels of a seed itself, from
the pool of a pair (`data.seed: null`), so the files serve all seeds.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from .declare import Pair, check, read
from .examples import Built, Folder, Part
from .pairs import MAKERS

ROOT = Path(__file__).parents[2]
FILES = ROOT / "runs" / "portfolio" / "files"
RATES = Path(__file__).parent / "rates.json"
USUAL_RATE = 1e-3
STEPS, LOOKS = 180, 15
BATCH, PRIMARY_BATCH = 64, 32
HELD_OUT, DEVELOPMENT = "held-out", "development"


def write(part: Part, path: Path) -> None:
    """One Parquet file; class names are in its metadata, so that a class without examples is known too."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any]
    if isinstance(part.inputs, list):
        columns = {"text": part.inputs}
    elif isinstance(part.inputs, dict):
        columns = {name: values if values.ndim == 1 else list(values) for name, values in part.inputs.items()}
    else:
        columns = {"image": [{"bytes": encoded(pixels), "path": None} for pixels in part.inputs]}
    columns["label"] = part.labels.tolist()
    table = pa.table(columns)
    table = table.replace_schema_metadata({"class_names": json.dumps({"label": list(part.classes)})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")


def encoded(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "WEBP" if pixels.ndim == 3 else "PNG", lossless=True, quality=100)
    return file.getvalue()


def job(pair: Pair, folder: Path) -> dict[str, Any]:
    """The configuration of a pair; strategy and seed are added for each run."""
    train, validation = pair.labels["train"], pair.labels["validation"]
    return {
        "device": "cpu",
        "data": {
            "kind": pair.kind,
            "seed": None,
            "max_length": 64,
            "primary": {"path": str(folder / "primary"), "train": train, "validation": validation, "test": None},
            "auxiliary": {
                name: {
                    "path": str(folder / f"{name}.parquet"),
                    "share_head": source["share_head"],
                    "batch_size": BATCH // len(pair.auxiliary),
                }
                for name, source in pair.auxiliary.items()
            },
        },
        "model": pair.model,
        "training": {
            "mode": "joint",
            "guided": {
                "steps": STEPS,
                "batch_size": BATCH,
                "primary_batch": min(PRIMARY_BATCH, train * 2 // 3),
                "lr": USUAL_RATE,
                "warmup": STEPS // 10,
                "evaluations": LOOKS,
            },
        },
        "log_every": STEPS,
        "log_layers": False,
        "checkpoint_every": None,
    }


def with_rate(text: str, rate: float) -> str:
    """A job with another learning rate."""
    return re.sub(r"^( +lr:).*$", rf"\1 {rate}", text, flags=re.MULTILINE)


def rates(path: Path = RATES) -> dict[str, Any]:
    """What `tune` has found."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def save(pair: Pair, built: Built, folder: Path) -> int:
    """Write a pair, and return the bytes that it takes."""
    write(built.pool, folder / "primary" / "train.parquet")
    write(built.test, folder / "primary" / "test.parquet")
    for name, part in built.auxiliary.items():
        write(part, folder / f"{name}.parquet")
    shown = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    text = f"# {pair.about}.\n{yaml.safe_dump(job(pair, shown), sort_keys=False)}"
    rate = rates().get(pair.name, {}).get("rate", USUAL_RATE)
    (folder / "job.yaml").write_text(with_rate(text, rate), encoding="utf-8")
    return sum(file.stat().st_size for file in folder.rglob("*.parquet"))


def make(name: str, data: Folder, half: str) -> tuple[Pair, Built]:
    """The examples of a pair; those of a held-out pair must be the declared ones."""
    if half == DEVELOPMENT:
        from .development import described, made

        built = made(name, data)
        return described(name, built), built
    built = MAKERS[name](data)
    check(read()[name], built)
    return read()[name], built


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.portfolio.prepare", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder with the public data sets")
    parser.add_argument("--development", action="store_true", help="the 28 earlier pairs instead of the held-out ones")
    parser.add_argument("--pairs", nargs="+", metavar="PAIR", help="only these pairs")
    parser.add_argument("--out", type=Path, default=FILES, help="default: %(default)s")
    given = parser.parse_args()
    data, total, half = Folder(given.folder), 0, DEVELOPMENT if given.development else HELD_OUT
    known = list(read())
    if given.development:
        known = [*import_module("experiments.never-regret.pairs").PAIRS, "cat_vs_dog"]
    for name in given.pairs or known:
        if name not in known:
            raise SystemExit(f"unknown pair {name!r}; there are {', '.join(known)}")
        pair, built = make(name, data, half)
        size = save(pair, built, given.out / half / name)
        total += size
        print(f"{name}: {size / 1e6:.1f} MB", flush=True)
    print(f"{given.out}: {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
