"""Turn texts into tensors: one row of token numbers for each text to classify, full blocks for
language modelling.

Texts are tokenised once: the token numbers are kept on disk, under a checksum of the texts and the
tokenizer.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attittud_lab.data.arrays import read_arrays, write_arrays
from attittud_lab.data.source import check_memory
from attittud_lab.data.spelling import NUMBER
from attittud_lab.errors import InputError, short

logger = logging.getLogger("attittud")

SHORTEST = 8
"""The next text fills up a block only if at least this many of its tokens fit; fewer would have
hardly any context.
"""
FORMAT = "tokens-2"
Numbers = npt.NDArray[Any]


def check_texts(texts: Sequence[str], where: str) -> None:
    """Refuse texts from which nothing can be learned: all are blank, or all are numbers. Some may
    be blank.
    """
    filled = [text for text in texts if text.strip()]
    if not filled:
        raise InputError(f"{where}: its texts contain no words; name another column with input:")
    if all(re.match(NUMBER, text.strip()) for text in filled):
        problem = f"{where}: all its texts are numbers, such as {short(filled[0], 40)!r}"
        raise InputError(f"{problem}; name another column with input:, or set data.kind: table")


class Words(Protocol):
    """The part of a tokenizer that reading texts needs."""

    vocabulary: int
    pad: int
    prefix: list[int]
    suffix: list[int]
    """Token numbers before and after every text, such as [CLS] and [SEP]."""

    @property
    def fingerprint(self) -> str:
        """A text that changes with anything that decides the token numbers."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token numbers of whole texts, without prefix and suffix."""


@dataclass(frozen=True)
class Reader:
    """Texts as tensors of token numbers for one model."""

    words: Words
    max_length: int
    pack: bool
    """Whether blocks for language modelling may hold several texts, each with its own prefix and
    suffix.
    """
    cache: Path | None = None

    def rows(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the beginning of each text (n x L, padded) and its length (n)."""
        room = self._room()
        tokens = tokenise(self.words, texts, self.cache)
        return self._padded([self._framed(text[:room]) for text in tokens])

    def blocks(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return all of the texts in blocks of at most `max_length` tokens (n x L, padded), and
        the length of each block (n). With `pack` the next text fills the rest of a block.
        """
        room = self._room()
        sides = len(self.words.prefix) + len(self.words.suffix)
        rows: list[list[Numbers]] = []  # the parts of texts in each block
        free = 0  # tokens that the last block still takes
        for text in tokenise(self.words, texts, self.cache):
            start = 0
            while start < len(text):
                fits = free - sides
                too_short = fits < min(SHORTEST, len(text) - start)
                if not self.pack or too_short:
                    rows.append([])
                    free = self.max_length
                    fits = room
                part = self._framed(text[start : start + fits])
                rows[-1].append(part)
                start += len(part) - sides
                free -= len(part)
        if not rows:
            raise InputError("the texts for language modelling contain no words; check input:")
        return self._padded(list(map(np.concatenate, rows)))

    def _framed(self, text: Numbers) -> Numbers:
        """Return the tokens of a text between prefix and suffix."""
        parts: list[Any] = [self.words.prefix, text, self.words.suffix]
        return np.concatenate(parts, dtype=np.int32, casting="unsafe")

    def _room(self) -> int:
        """Return how many tokens of a text fit between prefix and suffix."""
        room = self.max_length - len(self.words.prefix) - len(self.words.suffix)
        if room < 1:
            raise InputError(f"data.max_length: {self.max_length} leaves no room for words")
        return room

    def _padded(self, rows: Sequence[Numbers]) -> tuple[Tensor, Tensor]:
        """Return rows as one tensor, n x the longest, filled up with padding; and their lengths."""
        lengths = np.fromiter(map(len, rows), np.int64, count=len(rows))
        # As wide as the longest text, and at least one token wide.
        width = max(1, int(lengths.max(initial=0)))
        culprit = f"{len(rows):,} texts of up to {width:,} tokens"
        check_memory(4 * len(rows) * width, culprit, "lower data.max_length")
        padded = np.full((len(rows), width), self.words.pad, dtype=np.int32)
        for row, numbers in zip(padded, rows, strict=True):
            row[: len(numbers)] = numbers
        return torch.from_numpy(padded), torch.from_numpy(lengths)


def tokenise(words: Words, texts: Sequence[str], folder: Path | None) -> list[Numbers]:
    """Return the token numbers of each text, from `folder` if they are there; else computed and
    kept there.
    """
    path = None
    stored = None
    if folder is not None:
        path = folder / f"{_key(words, texts)}.safetensors"
        stored = read_arrays(path)
    if stored is None:
        rows = words.encode(texts)
        kind: type[np.integer[Any]] = np.int32
        if words.vocabulary <= 1 << 16:
            kind = np.uint16
        # Text i has the numbers from ends[i] to ends[i + 1].
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        numbers = np.fromiter(chain.from_iterable(rows), kind, count=int(ends[-1]))
        stored = {"numbers": numbers, "ends": ends}
        if path is not None:
            logger.info("%d texts are tokenised in %s", len(texts), path)
            write_arrays(path, stored, "choose another folder with data.cache=FOLDER")
    return [stored["numbers"][start:end] for start, end in pairwise(stored["ends"])]


def _key(words: Words, texts: Sequence[str]) -> str:
    """Return the name of the file for these texts in this order and this tokenizer."""
    digest = hashlib.sha256(f"{FORMAT}\0{words.fingerprint}\0{len(texts)}\0".encode())
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()[:32]
