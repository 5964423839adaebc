"""Texts as token numbers, read once: what a tokenizer finds is kept on disk, under a checksum of the texts and of itself."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from attittud_lab.files import make_folder, write_atomically

logger = logging.getLogger("attittud")

FORMAT = "tokens-1"
_CURE = "choose another folder by data.cache=FOLDER"
Numbers = npt.NDArray[Any]


class Words(Protocol):
    """A tokenizer, as far as reading texts needs one."""

    vocabulary: int
    pad: int
    prefix: list[int]
    suffix: list[int]
    """Token numbers before and behind every text, such as [CLS] and [SEP]."""

    def fingerprint(self) -> str:
        """Of all that decides which numbers a text becomes."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of whole texts, without prefix and suffix."""


@dataclass(frozen=True)
class Ragged:
    """Texts of different lengths in one array: text i is `numbers[ends[i]:ends[i + 1]]`."""

    numbers: Numbers
    ends: Numbers

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __iter__(self) -> Iterator[Numbers]:
        return (self.numbers[a:b] for a, b in zip(self.ends[:-1], self.ends[1:], strict=True))

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], vocabulary: int) -> Ragged:
        kind = np.uint16 if vocabulary <= 1 << 16 else np.int32
        ends = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
        return cls(np.fromiter((number for row in rows for number in row), kind, count=int(ends[-1])), ends)

    def checksum(self) -> Numbers:
        digest = hashlib.sha256(self.ends.tobytes())
        digest.update(self.numbers.tobytes())
        return np.frombuffer(digest.digest(), dtype=np.uint8)


def tokenised(words: Words, texts: Sequence[str], folder: Path | None) -> Ragged:
    """The token numbers of the texts; from `folder` where they are there and whole, else made and kept there."""
    if folder is None:
        return Ragged.of(words.encode(texts), words.vocabulary)
    path = folder / f"{_key(words, texts)}.safetensors"
    found = _read(path, len(texts))
    if found is None:
        logger.info("tokenising %d texts into %s", len(texts), path)
        found = Ragged.of(words.encode(texts), words.vocabulary)
        make_folder(folder, _CURE, shared=True)
        content = {"numbers": found.numbers, "ends": found.ends, "sha256": found.checksum()}
        write_atomically(path, save(content), _CURE)
    return found


def _key(words: Words, texts: Sequence[str]) -> str:
    """Another text, tokenizer or order of texts has another file."""
    digest = hashlib.sha256(f"{FORMAT}\0{words.fingerprint()}\0{len(texts)}\0".encode())
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()[:32]


def _read(path: Path, count: int) -> Ragged | None:
    """What is in a file; None where there is none, or not what was written into it."""
    if not path.exists():
        return None
    try:
        content = load(path.read_bytes())
        found = Ragged(content["numbers"], content["ends"])
        whole = len(found) == count and np.array_equal(found.checksum(), content["sha256"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        whole = False
    if not whole:
        logger.warning("%s: does not fit its own checksum, so its texts are tokenised again", path)
        return None
    return found
