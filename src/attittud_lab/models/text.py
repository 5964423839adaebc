"""Texts: masked language modelling, and a network that hashes words and needs no vocabulary
file.
"""

from __future__ import annotations

import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from attittud_lab.models import Wanted


SHARE = 0.15
"""The share of a text's words that are hidden (BERT)."""
VOCABULARY = 8192
"""How many numbers words are hashed to."""
_WORD = re.compile(r"\w+|[^\w\s]")


class TextBody(nn.Module, ABC):
    """A body for token numbers (n x L, padded with `pad`): a vector for each token, or their mean
    for each row.
    """

    features: int
    vocabulary: int
    pad: int
    mask: int
    special: tuple[int, ...]
    """Token numbers that are never masked."""

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """The word embeddings, vocabulary x e."""

    def segments(self, inputs: Tensor) -> Tensor:
        """Which text of its row a token belongs to, counted from 1; 0 for padding."""
        return (inputs != self.pad).long()

    @abstractmethod
    def tokens(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        """n x L x features; texts of one row do not see each other. Without segments each row is
        one text.
        """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return n x features: the mean over the tokens of a row, 0 for an empty one."""
        present = (inputs != self.pad).unsqueeze(-1)
        return (self.tokens(inputs) * present).sum(1) / present.sum(1).clamp(min=1)


@dataclass(frozen=True)
class Hidden:
    """Rows of tokens with some hidden. Every row has the same number p of positions, not all of
    which count.
    """

    inputs: Tensor
    """Token numbers after hiding: n x L."""
    segments: Tensor
    """The text of its row that each token belongs to, as in `TextBody.segments`: n x L."""
    positions: Tensor
    """Positions in the row: n x p."""
    asked: Tensor
    """Whether the word at a position is hidden and has to be predicted: n x p, boolean."""
    words: Tensor
    """The original token numbers at the positions: n x p."""


def hide(inputs: Tensor, body: TextBody) -> Hidden:
    """Choose 15 % of each row's words at random, one at least, and hide them.

    80 % of the chosen words are masked, 10 % are replaced by a random word, and 10 % are left as
    they are (BERT). `inputs`: token numbers, n x L.
    """
    eligible = inputs != body.pad
    for token in body.special:
        eligible = eligible & (inputs != token)
    # The same number of positions in every row: for a number that depends on the draw, the host
    # would have to wait.
    most = max(1, round(SHARE * inputs.shape[1]))
    # The positions with the smallest draws are chosen; a draw of 2 marks tokens that are no words.
    random = torch.rand_like(inputs, dtype=torch.float32)
    draws, positions = torch.where(eligible, random, 2.0).topk(most, largest=False)
    count = (SHARE * eligible.sum(1, keepdim=True)).round().clamp(min=1)
    asked = (torch.arange(most, device=inputs.device) < count) & (draws < 2)
    words = inputs.gather(1, positions)
    kind = torch.rand_like(draws)
    shown = torch.where(kind < 0.9, torch.randint_like(words, body.vocabulary), words)
    shown = torch.where(kind < 0.8, body.mask, shown)
    # Segments come from the original words: a random word may be the padding token.
    hidden = inputs.scatter(1, positions, torch.where(asked, shown, words))
    return Hidden(hidden, body.segments(inputs), positions, asked, words.long())


class MaskedHead(nn.Module):
    """Predicts hidden words: a separate layer, then a bias and the body's word embeddings, which
    are shared and not stored.
    """

    def __init__(self, features: int, table: Tensor, eps: float = 1e-5) -> None:
        super().__init__()
        self.dense = nn.Linear(features, table.shape[1])
        self.norm = nn.LayerNorm(table.shape[1], eps=eps)
        self.bias = nn.Parameter(torch.zeros(table.shape[0]))

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.dense(states))), table, self.bias)


def masked_losses(body: TextBody, head: MaskedHead, hidden: Hidden) -> Tensor:
    """Return the mean loss over the hidden words of each row (n). No row depends on other rows, or
    on the padded width.
    """
    states = body.tokens(hidden.inputs, hidden.segments)
    states = states.gather(1, hidden.positions.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
    outputs = head(states, body.table).flatten(0, 1)
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    losses = F.cross_entropy(outputs, hidden.words.flatten(), reduction="none")
    losses = losses.view_as(hidden.positions)
    return (losses * hidden.asked).sum(1) / hidden.asked.sum(1).clamp(min=1)


class HashedWords:
    """Words and punctuation, lower-cased, by CRC-32 into a fixed number of buckets. 0 pads, 1
    masks.
    """

    def __init__(self) -> None:
        self.vocabulary = VOCABULARY
        self.pad = 0
        self.fingerprint = f"hashed-1/{VOCABULARY}"
        self.prefix: list[int] = []
        self.suffix: list[int] = []

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the numbers of the words of each text, from 2."""
        buckets = self.vocabulary - 2
        rows = []
        for text in texts:
            words = _WORD.findall(text.lower())
            rows.append([2 + zlib.crc32(word.encode()) % buckets for word in words])
        return rows


class TextCNN(TextBody):
    """Embedding, two residual convolutions over three words each, mean over the tokens."""

    def __init__(self, request: Wanted) -> None:
        super().__init__()
        width = request.config.width
        self.features = width
        self.vocabulary = VOCABULARY
        self.pad = 0
        self.mask = 1
        self.special = (self.pad, self.mask)
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=self.pad)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(request.config.dropout)

    @property
    def table(self) -> Tensor:
        return self.embedding.weight

    def tokens(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        if segments is None:
            segments = self.segments(inputs)
        present = (segments > 0).unsqueeze(-1)
        x = self.embedding(inputs)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            # Padding is set to zero, and a convolution wants the features in dimension 1.
            update = torch.relu(convolution((norm(x) * present).transpose(1, 2)).transpose(1, 2))
            x = x + self.dropout(update)
        return x  # type: ignore[no-any-return]  # modules return Any
