"""Turn the public data sets into one small cache: `python -m experiments.never-regret.prepare FOLDER`.

FOLDER holds `cifar10/`, `tiny_imagenet/`, `nih_chest_xray/`, `imdb/` and `amazon_helpful/` as Parquet files in the
layout of the public dataset hub. Images become 16 or 32 pixels wide, texts counts of hashed words. The cache is what the
suite reads; checksums of its arrays are kept with the code, so that two machines can check that their data are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / "runs" / "never-regret" / "cache"
CHECKSUMS = HERE / "checksums.json"
WORDS = 2048

Arrays = dict[str, np.ndarray]


def rows(folder: Path, pattern: str, start: int = 0, end: int | None = None) -> dict[str, list[Any]]:
    """Rows of the files that match, in the order of their names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(folder.glob(pattern))
    if not files:
        raise SystemExit(
            f"{folder} has no file {pattern}; give the folder with the Parquet files of all five data sets"
        )
    found = pa.concat_tables(pq.read_table(file) for file in files)
    return found.slice(start, None if end is None else end - start).to_pydict()


def pixels(images: Iterable[dict[str, Any]], size: int, mode: str) -> np.ndarray:
    """Images as uint8, n x size x size (x 3), averaged down."""
    from PIL import Image

    found = []
    for image in images:
        with Image.open(io.BytesIO(image["bytes"])) as opened:
            found.append(np.asarray(opened.convert(mode).resize((size, size), Image.Resampling.BOX)))
    return np.stack(found)


def words(texts: list[str]) -> Arrays:
    """Counts of hashed words as a sparse matrix; common English words are left out."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(n_features=WORDS, alternate_sign=False, norm=None, stop_words="english")
    matrix = hashing.transform(texts).tocsr()
    matrix.sort_indices()
    return {
        "columns": matrix.indices.astype(np.uint16),
        "counts": np.minimum(matrix.data, 255).astype(np.uint8),
        "ends": matrix.indptr.astype(np.int32),
    }


def cifar10(folder: Path, pool: tuple[int, int] = (0, 9000), held: tuple[int, int] = (0, 2000)) -> Arrays:
    train, test = rows(folder, "train-*", *pool), rows(folder, "test-*", *held)
    return {
        "pool": pixels(train["img"], 16, "RGB"),
        "pool_labels": np.array(train["label"], np.uint8),
        "test": pixels(test["img"], 16, "RGB"),
        "test_labels": np.array(test["label"], np.uint8),
    }


def tiny_imagenet(folder: Path) -> Arrays:
    """Half of its 200 classes."""
    train = rows(folder, "train-*")
    kept = [i for i, label in enumerate(train["label"]) if label < 100]
    return {
        "pool": pixels((train["image"][i] for i in kept), 16, "RGB"),
        "pool_labels": np.array([train["label"][i] for i in kept], np.uint8),
    }


def nih_chest_xray(folder: Path) -> Arrays:
    """Patients of validation and test together are the test set; none of them is in the pool, where each has some four images."""
    train = rows(folder, "train-*")
    rest = [rows(folder, "validation-*"), rows(folder, "test-*")]
    return {
        "pool": pixels(train["image"], 32, "L"),
        "pool_labels": np.array(train["labels"], np.uint8),
        "test": np.concatenate([pixels(part["image"], 32, "L") for part in rest]),
        "test_labels": np.concatenate([np.array(part["labels"], np.uint8) for part in rest]),
    }


def imdb(folder: Path, pool: tuple[int, int] = (0, 7000), held: tuple[int, int] = (0, 2000)) -> Arrays:
    """Return rows, the pool's rows first."""
    train, test = rows(folder, "train-*", *pool), rows(folder, "test-*", *held)
    return words(train["text"] + test["text"]) | {"labels": np.array(train["label"] + test["label"], np.uint8)}


def amazon_helpful(folder: Path) -> Arrays:
    """All reviews with the domain they come from; `helpful` is 255 where nobody voted. The last 1,500 are for testing."""
    parts = [rows(folder, f"{part}-*") for part in ("train", "validation", "test", "unsupervised")]
    texts = [text for part in parts for text in part["text"]]
    helpful = [label for part in parts for label in part.get("label", [255] * len(part["text"]))]
    domains = [domain for part in parts for domain in part["domain"]]
    names = sorted(set(domains))
    return words(texts) | {
        "helpful": np.array(helpful, np.uint8),
        "domain": np.array([names.index(domain) for domain in domains], np.uint8),
    }


SOURCES: dict[str, tuple[str, Callable[[Path], Arrays]]] = {
    "cifar10": ("cifar10", cifar10),
    "cifar10_more": ("cifar10", partial(cifar10, pool=(9000, 15000), held=(2000, 5000))),
    "tiny_imagenet": ("tiny_imagenet", tiny_imagenet),
    "nih_chest_xray": ("nih_chest_xray", nih_chest_xray),
    "imdb": ("imdb", imdb),
    "imdb_more": ("imdb", partial(imdb, pool=(7000, 12000), held=(2000, 5000))),
    "amazon_helpful": ("amazon_helpful", amazon_helpful),
}
"""By name in the cache: the data set's folder, and what is taken of it."""


def checksum(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.never-regret.prepare", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder with the five data sets")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where the cache goes (default: %(default)s)")
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)
    sums = {}
    for name, (folder, make) in SOURCES.items():
        arrays = make(given.folder / folder)
        np.savez_compressed(given.cache / f"{name}.npz", **arrays)
        sums[name] = checksum(arrays)
        print(f"{name}: {(given.cache / name).with_suffix('.npz').stat().st_size / 1e6:.1f} MB", flush=True)
    CHECKSUMS.write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
