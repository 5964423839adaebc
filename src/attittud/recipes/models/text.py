"""A text network that needs no vocabulary file: words are hashed to numbers."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_WORD = re.compile(r"\w+|[^\w\s]")


class HashingTokenizer:
    """Words and punctuation, lower-cased, by CRC-32 into a fixed number of buckets. 0 pads, 1 masks."""

    def __init__(self, max_length: int, vocabulary: int = 8192) -> None:
        self.max_length, self.vocabulary = max_length, vocabulary

    def __call__(self, texts: Sequence[str]) -> Tensor:
        numbers = torch.zeros(len(texts), self.max_length, dtype=torch.int32)
        for row, text in zip(numbers, texts, strict=True):
            # Words are short: a prefix of the text that is long enough spares the rest of a book.
            words = _WORD.findall(text[: 64 * self.max_length].lower())[: self.max_length]
            found = [2 + zlib.crc32(word.encode()) % (self.vocabulary - 2) for word in words]
            row[: len(found)] = torch.tensor(found, dtype=torch.int32)
        return numbers


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

    def tokens(self, inputs: Tensor) -> Tensor:
        present = (inputs != self.pad).unsqueeze(-1)
        x = self.embedding(inputs)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            update = torch.relu(convolution((norm(x) * present).transpose(1, 2)).transpose(1, 2))
            x = x + self.dropout(update)
        return x  # type: ignore[no-any-return]

    def forward(self, inputs: Tensor) -> Tensor:
        present = (inputs != self.pad).unsqueeze(-1)
        return (self.tokens(inputs) * present).sum(1) / present.sum(1).clamp(min=1)
