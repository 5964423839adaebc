"""TF-IDF: the formula against a count by hand, a restored map equal to the bit, and odd texts."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np

from attittud_lab.features import tfidf
from attittud_lab.features.tfidf import TfidfFeatures
from tests.helpers.texts import reviews

TEXTS = [row["text"] for row in reviews(60, 0)]


def fitted(texts: list[str] = TEXTS) -> TfidfFeatures:
    feature_map = TfidfFeatures()
    feature_map.fit(texts)
    return feature_map


def test_values_follow_the_formula():
    """A block of words, counted by hand; the characters begin where the words end."""
    feature_map = fitted()
    terms = feature_map.plain()["terms"]["words"]
    words = [[word for word in text.split() if word.isalnum()] for text in TEXTS]
    counts = [Counter(row) + Counter(map(" ".join, pairwise(row))) for row in words]
    expected = np.zeros((len(TEXTS), len(terms)))
    for column, term in enumerate(terms):
        frequency = sum(term in row for row in counts)
        assert frequency >= 2
        weight = 1 + math.log((1 + len(TEXTS)) / (1 + frequency))
        for position, row in enumerate(counts):
            if term in row:
                expected[position, column] = (1 + math.log(row[term])) * weight
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    rows = feature_map.transform(TEXTS)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows[:, : len(terms)].toarray(), expected, atol=1e-6)
    np.testing.assert_allclose(
        np.linalg.norm(rows[:, len(terms) :].toarray(), axis=1), 1, atol=1e-6
    )


def test_rows_do_not_depend_on_other_rows(monkeypatch):
    feature_map = fitted()
    whole = feature_map.transform(TEXTS)
    monkeypatch.setattr(tfidf, "_CHUNK", 7)
    assert (feature_map.transform(TEXTS) != whole).nnz == 0
    assert (feature_map.transform(TEXTS[30:]) != whole[30:]).nnz == 0
    assert feature_map.transform([]).shape == (0, whole.shape[1])
    assert feature_map.transform([""]).nnz == 0


def test_terms_are_few_and_learned_from_the_first_texts(monkeypatch):
    monkeypatch.setattr(tfidf, "MOST_TERMS", 10)
    monkeypatch.setattr(tfidf, "FITTED_ON", 20)
    terms = fitted([*["primary words"] * 10, *["auxiliary texts"] * 10_000]).plain()["terms"]
    assert {"primary", "auxiliary"} <= set(terms["words"])
    assert all(len(block) <= 10 for block in terms.values())
