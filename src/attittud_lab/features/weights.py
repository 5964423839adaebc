"""The identity of frozen weights: a model that was fitted on the features of one encoder needs the
same encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attittud_lab.errors import InputError, one_line

_BLOCK = 1 << 22
_MAY_DIFFER = ("version", "precision")


def checksum(paths: Iterable[Path]) -> str:
    """Return one SHA-256 of the names and the contents of some files."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        try:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        except OSError as error:
            problem = f"{path}: cannot be read ({one_line(error, 200)})"
            raise InputError(
                f"{problem}; install the encoder again, or choose another one"
            ) from None
    return digest.hexdigest()


def check_same(name: str, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse an encoder that differs from the one that a stored model was fitted on.

    The version of the package and the precision may differ; weights and sizes may not.
    """
    for key in now:
        if key not in _MAY_DIFFER and stored.get(key) != now[key]:
            before = f"{key} {str(stored.get(key))[:16]!r}, now {str(now[key])[:16]!r}"
            version = stored.get("version")
            which = f"version {version} of {stored.get('package')}" if version else "the same files"
            problem = f"features {name!r}: the encoder is not the one of the training ({before})"
            raise InputError(f"{problem}; install {which}, or train again")
