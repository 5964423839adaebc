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
_TRIED = 32  # rows that a forecast computes
Rows = npt.NDArray[np.float32]


def compute(
    feature_map: FeatureMap,
    inputs: Sequence[Any],
    cache_folder: Path,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> Matrix:
    """Return one row for each input. Rows that are in `cache_folder` are read, the others computed
    and kept. Rows of a map that is not `worth_keeping` are always computed.

    A row depends on its input alone, up to rounding. An encoder computes several rows at once, and
    the other inputs of a batch change the last bits of a row (in bfloat16 by up to 0.001 of its
    length). The same inputs in the same order give the same bits from an empty folder, and from a
    folder that a stopped run left behind.
    """
    feature_map.to(str(device))
    progress = progress or Progress()
    title = f"features by {feature_map.name}"
    if not feature_map.worth_keeping:
        progress.phase(title, len(inputs), 0)
        return feature_map.transform(inputs, progress)
    folder = _folder(feature_map, cache_folder)
    digests = list(map(digest, inputs))
    rows = _stored(folder, set(digests))
    missing = _missing(inputs, digests, rows)
    progress.phase(title, len(inputs), len(inputs) - len(missing))
    missing_digests = list(missing)
    for start in range(0, len(missing_digests), CHUNK):
        chunk = missing_digests[start : start + CHUNK]
        examples = [missing[key] for key in chunk]
        features = np.asarray(feature_map.transform(examples, progress), dtype=np.float32)
        _write(folder, chunk, features)
        rows.update(zip(chunk, features, strict=True))
    if not digests:
        return feature_map.transform([])
    return np.stack([rows[key] for key in digests])


def seconds_for(
    feature_map: FeatureMap,
    inputs: Sequence[Any],
    cache_folder: Path,
    device: str | torch.device,
) -> float:
    """Forecast the seconds that `compute` takes, from some of the inputs; those in the cache take no
    time.

    The forecast itself computes at most `_TRIED` rows, after two that warm up the network.
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
    sample = [examples[position] for position in spread]
    feature_map.transform(sample[:2])
    began = time.perf_counter()
    feature_map.transform(sample)
    return (time.perf_counter() - began) / len(sample) * len(examples)


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
    """Return the inputs that have no row yet, by their digest; of equal inputs the first."""
    missing: dict[bytes, Any] = {}
    for key, example in zip(digests, inputs, strict=True):
        if key not in rows:
            missing.setdefault(key, example)
    return missing


def _stored(folder: Path, digests: set[bytes]) -> dict[bytes, Rows]:
    """Return the rows of these digests of inputs that are on the disk, by digest. A damaged file
    counts as absent.
    """
    rows: dict[bytes, Rows] = {}
    for path in sorted(folder.glob("*.safetensors")):
        arrays = read_arrays(path)
        if arrays is None:
            continue
        for numbers, row in zip(arrays["inputs"], arrays["features"], strict=True):
            key = numbers.tobytes()
            if key in digests:
                rows[key] = row
    return rows


def _write(folder: Path, digests: Sequence[bytes], features: Rows) -> None:
    """Write the rows of a chunk with the digests of their inputs.

    The name of the file depends on the digests alone, so workers that compute the same rows at the
    same time do not disturb each other.
    """
    keys = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), DIGEST_SIZE)
    name = hashlib.sha256(keys.tobytes()).hexdigest()[:32]
    path = folder / f"{name}.safetensors"
    advice = "choose another folder for the cache"
    write_arrays(path, {"inputs": keys, "features": features}, advice)
