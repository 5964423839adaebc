"""Texts as weighted counts of words and characters (TF-IDF), by scikit-learn's vectorizers.

Each text becomes two sparse rows of length 1, side by side: one for single words and pairs of
words, one for sequences of 2 to 5 characters. With term t in text d of n texts, of which df(t) have
the term,

    value(d, t) = (1 + ln count(d, t)) * (1 + ln((1 + n) / (1 + df(t)))),

and each row is then divided by its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor

from attittud_lab.errors import InputError
from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.output.progress import Progress

MOST_TERMS = 20_000
"""The most frequent terms of each block that are used. More made no development pair better."""
FITTED_ON = 10_000
"""The most texts that terms are learned from: half of them the first ones, the others spread
evenly.
"""
_CHUNK = 1_000
_BLOCKS: dict[str, dict[str, Any]] = {
    # One letter is a word too: in texts about mathematics it is a name.
    "words": {"analyzer": "word", "ngram_range": (1, 2), "token_pattern": r"(?u)\b\w+\b"},
    # Sequences do not reach over the borders of words.
    "characters": {"analyzer": "char_wb", "ngram_range": (2, 5)},
}


class TfidfFeatures(FeatureMap):
    """Weighted counts of words, pairs of words and short sequences of characters."""

    name = "tfidf"
    reads = "text"

    def __init__(self) -> None:
        self._blocks: dict[str, TfidfVectorizer] = {}

    def fit(self, inputs: Sequence[str]) -> None:
        """Choose the terms and their weights. Labelled texts should come first: see `FITTED_ON`.

        A block without common terms is left out; without any block the texts are refused.
        """
        texts = _sample(inputs)
        self._blocks = {}
        for block in _BLOCKS:
            least = 1
            if len(texts) > 1:  # a term of one text says nothing about another one
                least = 2
            vectorizer = _vectorizer(block, min_df=least, max_features=MOST_TERMS)
            try:
                vectorizer.fit(texts)
            except ValueError:  # scikit-learn refuses texts without any common term
                continue
            self._blocks[block] = vectorizer
        if not self._blocks:
            raise InputError(
                "tfidf: no word and no sequence of characters is in two of "
                f"{len(texts):,} texts; name another column with input:, or give longer texts"
            )

    def transform(
        self, inputs: Sequence[str], progress: Progress | None = None
    ) -> sparse.csr_matrix:
        """Return n x terms: the block of words, then the block of characters."""
        if not self._blocks:
            raise ValueError("the map has not been fitted; call fit() first")
        chunks = []
        for start in range(0, max(1, len(inputs)), _CHUNK):
            texts = list(map(str, inputs[start : start + _CHUNK]))
            blocks = [_rows(vectorizer, texts) for vectorizer in self._blocks.values()]
            chunks.append(sparse.hstack(blocks, format="csr"))
            if progress is not None:
                progress.advance(len(texts), {})
        return sparse.csr_matrix(sparse.vstack(chunks, format="csr"))

    def plain(self) -> Plain:
        terms = {}
        for block, vectorizer in self._blocks.items():
            terms[block] = vectorizer.get_feature_names_out().tolist()
        return {"terms": terms}

    def tensors(self) -> dict[str, Tensor]:
        weights = {}
        for block, vectorizer in self._blocks.items():
            weights[f"{block}.idf"] = torch.from_numpy(vectorizer.idf_.copy())
        return weights

    @classmethod
    def restore(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Return the map with the stored terms and weights; refuses those that do not fit."""
        restored = cls()
        try:
            for block, terms in plain["terms"].items():
                vectorizer = _vectorizer(block, vocabulary=terms)
                vectorizer.idf_ = tensors[f"{block}.idf"].numpy()
                restored._blocks[block] = vectorizer
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"tfidf: the stored terms and weights do not belong together ({error!r:.100})"
            raise InputError(
                f"{problem}; restore the files from a backup, or train again"
            ) from None
        return restored


def _vectorizer(block: str, **more: Any) -> TfidfVectorizer:
    return TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **_BLOCKS[block], **more)


def _sample(inputs: Sequence[str]) -> list[str]:
    """Return the first texts and evenly spread others, at most `FITTED_ON` together."""
    if len(inputs) <= FITTED_ON:
        return list(map(str, inputs))
    first = FITTED_ON // 2
    others = np.linspace(first, len(inputs) - 1, FITTED_ON - first).round().astype(int)
    positions = [*range(first), *others.tolist()]
    return [str(inputs[position]) for position in positions]


def _rows(vectorizer: TfidfVectorizer, texts: list[str]) -> sparse.csr_matrix:
    """Return n x terms of one block; scikit-learn refuses n = 0."""
    if not texts:
        return sparse.csr_matrix((0, len(vectorizer.idf_)), dtype=np.float32)
    return vectorizer.transform(texts)
