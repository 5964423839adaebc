"""From texts to tensors: one row of token numbers for a text to be classified, full blocks for language modelling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attittud_lab.data.tokens import Numbers, Words, tokenised
from attittud_lab.errors import InputError

SHORTEST = 8
"""Tokens of a text for which a block is filled up; fewer would have next to no context."""


@dataclass(frozen=True)
class Reader:
    """Texts as tensors of token numbers for one model."""

    words: Words
    max_length: int
    pack: bool
    """Whether blocks for language modelling may hold several texts, each with its own prefix and suffix."""
    cache: Path | None = None

    def rows(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The beginning of each text (n x L, padded) and its length (n)."""
        room = self._room()
        return self._padded([self._framed(text[:room]) for text in self._read(texts)])

    def blocks(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """All of the texts, cut to `max_length`; with `pack` the rest of a block is filled by the next text."""
        room, sides = self._room(), len(self.words.prefix) + len(self.words.suffix)
        found: list[list[Numbers]] = []
        left = 0
        for text in self._read(texts):
            start = 0
            while start < len(text):
                fits = left - sides
                if not self.pack or fits < min(SHORTEST, len(text) - start):
                    found.append([])
                    left, fits = self.max_length, room
                piece = self._framed(text[start : start + fits])
                found[-1].append(piece)
                start, left = start + len(piece) - sides, left - len(piece)
        if not found:
            raise InputError("there is not a single word in the texts for language modelling; check the input column")
        return self._padded([np.concatenate(pieces) for pieces in found])

    def _framed(self, piece: Numbers) -> Numbers:
        before, words = len(self.words.prefix), len(piece)
        found = np.empty(before + words + len(self.words.suffix), dtype=np.int32)
        found[:before], found[before : before + words], found[before + words :] = (
            self.words.prefix,
            piece,
            self.words.suffix,
        )
        return found

    def _read(self, texts: Sequence[str]) -> Iterable[Numbers]:
        return tokenised(self.words, texts, self.cache)

    def _room(self) -> int:
        room = self.max_length - len(self.words.prefix) - len(self.words.suffix)
        if room < 1:
            raise InputError(f"data.max_length: {self.max_length} leaves no room for words; raise it")
        return room

    def _padded(self, rows: Sequence[Numbers]) -> tuple[Tensor, Tensor]:
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        # No wider than the longest text; but even where none has a word there is a place.
        padded = np.full((len(rows), max(1, int(lengths.max(initial=0)))), self.words.pad, dtype=np.int32)
        for row, numbers in zip(padded, rows, strict=True):
            row[: len(numbers)] = numbers
        return torch.from_numpy(padded), torch.from_numpy(lengths)
