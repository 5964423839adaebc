"""A text network that needs no vocabulary file: words are hashed to numbers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_WORD = re.compile(r"\w+|[^\w\s]")


class HashedWords:
    """Words and punctuation, lower-cased, by CRC-32 into a fixed number of buckets. 0 pads, 1 masks."""

    def __init__(self, vocabulary: int = 8192) -> None:
        self.vocabulary, self.pad = vocabulary, 0
        self.prefix: list[int] = []
        self.suffix: list[int] = []

    def fingerprint(self) -> str:
        return f"hashed-1/{self.vocabulary}"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        buckets = self.vocabulary - 2
        return [[2 + zlib.crc32(w.encode()) % buckets for w in _WORD.findall(text.lower())] for text in texts]


class TextCNN(nn.Module):
    """Embedding, two residual convolutions over three words each, mean over the tokens."""

    def __init__(self, vocabulary: int, width: int, dropout: float) -> None:
        super().__init__()
        self.features, self.vocabulary = width, vocabulary
        self.pad, self.mask, self.special = 0, 1, (0, 1)
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    @property
    def table(self) -> Tensor:
        return self.embedding.weight

    def segments(self, inputs: Tensor) -> Tensor:
        return (inputs != self.pad).long()

    def tokens(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        present = ((inputs != self.pad) if segments is None else segments > 0).unsqueeze(-1)
        x = self.embedding(inputs)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            update = torch.relu(convolution((norm(x) * present).transpose(1, 2)).transpose(1, 2))
            x = x + self.dropout(update)
        return x  # type: ignore[no-any-return]  # modules return Any

    def forward(self, inputs: Tensor) -> Tensor:
        present = (inputs != self.pad).unsqueeze(-1)
        return (self.tokens(inputs) * present).sum(1) / present.sum(1).clamp(min=1)
