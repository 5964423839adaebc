"""Compute the features of all examples of a job, and keep what took long.

Rows of a frozen encoder are kept on disk, each under the checksum of its input, in files of `CHUNK`
rows. A run that was stopped continues after the last file, and another run on the same examples
reads them all.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from attittud_lab.data.arrays import read_arrays, write_arrays
from attittud_lab.data.splits import DIGEST_SIZE, digest
from attittud_lab.features.base import FeatureMap, Matrix
from attittud_lab.output.progress import Progress

CHUNK = 256
"""Rows in a file. Texts of a chunk are sorted by length, so few tokens are padding."""
_FORMAT = "features-3"
_TRIED = 32
Rows = npt.NDArray[np.float32]


def compute(
    feature_map: FeatureMap,
    inputs: Sequence[Any],
    cache_folder: Path,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Matrix:
    """Return one row for each input. Rows that are in `cache_folder` are read, the others computed
    and kept.

    A row depends on its input alone, up to rounding: an encoder computes several rows at once, and
    which ones these are changes its last bits (in bfloat16 by up to 0.001 of the length of a row).
    The same inputs in the same order give the same bits from an empty folder, and from a folder
    that a stopped run left behind.
    """
    feature_map.to(str(device))
    progress = progress or Progress()
    name = f"features by {feature_map.name}"
    if not feature_map.worth_keeping:
        progress.phase(name, len(inputs), 0)
        return feature_map.transform(inputs, progress)
    folder = _folder(feature_map, cache_folder)
    digests = list(map(digest, inputs))
    rows = _stored(folder, set(digests))
    missing = _missing(inputs, digests, rows)
    progress.phase(name, len(inputs), len(inputs) - len(missing))
    names = list(missing)
    for start in range(0, len(names), CHUNK):
        chunk = names[start : start + CHUNK]
        examples = [missing[name] for name in chunk]
        features = np.asarray(feature_map.transform(examples, progress), dtype=np.float32)
        _write(folder, chunk, features)
        rows.update(zip(chunk, features, strict=True))
    if not digests:
        return feature_map.transform([])
    return np.stack([rows[name] for name in digests])


def seconds_for(
    feature_map: FeatureMap,
    inputs: Sequence[Any],
    cache_folder: Path,
    device: str | torch.device,
) -> float:
    """Forecast how long `compute` takes, from some of the inputs; those in the cache take no time.

    The forecast itself computes at most 32 rows, after two that warm up the network.
    """
    feature_map.to(str(device))
    examples = inputs
    if feature_map.worth_keeping:
        digests = list(map(digest, inputs))
        rows = _stored(_folder(feature_map, cache_folder), set(digests))
        examples = list(_missing(inputs, digests, rows).values())
    if len(examples) == 0:
        return 0.0
    spread = np.linspace(0, len(examples) - 1, min(_TRIED, len(examples))).astype(int)
    tried = [examples[position] for position in spread]
    feature_map.transform(tried[:2])
    began = time.perf_counter()
    feature_map.transform(tried)
    return (time.perf_counter() - began) / len(tried) * len(examples)


def _folder(feature_map: FeatureMap, cache_folder: Path) -> Path:
    """Return the folder of a map: other settings or weights give another folder."""
    digest = hashlib.sha256(_FORMAT.encode())
    digest.update(json.dumps(feature_map.plain(), sort_keys=True).encode())
    for name, tensor in sorted(feature_map.tensors().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    safe_name = "".join(filter(str.isalnum, feature_map.name))
    return cache_folder / f"{safe_name}-{digest.hexdigest()[:16]}"


def _missing(
    inputs: Sequence[Any], digests: Sequence[bytes], rows: Mapping[bytes, Rows]
) -> dict[bytes, Any]:
    """Return the inputs that have no row yet, by their checksum; of equal inputs the first."""
    missing: dict[bytes, Any] = {}
    for name, example in zip(digests, inputs, strict=True):
        if name not in rows:
            missing.setdefault(name, example)
    return missing


def _stored(folder: Path, checksums: set[bytes]) -> dict[bytes, Rows]:
    """Return the rows that are on the disk, by the checksum of their input."""
    rows: dict[bytes, Rows] = {}
    for path in sorted(folder.glob("*.safetensors")):
        arrays = read_arrays(path)
        if arrays is None:
            continue
        for key, row in zip(arrays["inputs"], arrays["features"], strict=True):
            name = key.tobytes()
            if name in checksums:
                rows[name] = row
    return rows


def _write(folder: Path, names: Sequence[bytes], features: Rows) -> None:
    """Write a chunk. The same rows have the same name, so workers that compute them at the same
    time do not disturb each other.
    """
    keys = np.frombuffer(b"".join(names), dtype=np.uint8).reshape(len(names), DIGEST_SIZE)
    name = hashlib.sha256(keys.tobytes()).hexdigest()[:32]
    path = folder / f"{name}.safetensors"
    advice = "choose another folder for the cache"
    write_arrays(path, {"inputs": keys, "features": features}, advice)
