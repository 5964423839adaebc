"""Keep arrays that took long to compute: files with a checksum, of which damaged ones are computed
again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from attittud_lab.files import make_folder, write_atomically

logger = logging.getLogger("attittud")

Arrays = Mapping[str, npt.NDArray[Any]]
_CHECKSUM = "sha256"


def write_arrays(path: Path, arrays: Arrays, advice: str) -> None:
    """Write a file, which a killed process leaves whole or absent; `advice` ends an error message."""
    make_folder(path.parent, advice, shared=True)
    write_atomically(path, save({**arrays, _CHECKSUM: _checksum(arrays)}), advice)


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of a file; None if there is no file or, with a warning, if it is
    damaged.
    """
    try:
        arrays = load(path.read_bytes())
        if np.array_equal(arrays.pop(_CHECKSUM), _checksum(arrays)):
            return arrays
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        pass
    logger.warning("%s: does not match its own checksum, so it is computed again", path)
    return None


def _checksum(arrays: Arrays) -> npt.NDArray[np.uint8]:
    """Return the SHA-256 of all names, types, shapes and values, as 32 numbers."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return np.frombuffer(digest.digest(), dtype=np.uint8)
