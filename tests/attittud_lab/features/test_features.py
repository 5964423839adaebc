"""The registry: what is tried by default, with and without packages, and names that are refused."""

import importlib.util

import numpy as np
import pytest

from attittud_lab import features
from attittud_lab.errors import InputError


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make packages look as if they were not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(features, "find_spec", lambda name: None if name in modules else real(name))


@pytest.mark.parametrize(("kind", "expected"), [("text", "tfidf"), ("table", "columns")])
def test_every_kind_of_data_has_features(kind: str, expected: str) -> None:
    assert expected in features.default_features(kind)
    assert {*features.default_features(kind)} <= {*features.names(kind)}


@pytest.mark.parametrize(
    ("kind", "name", "culprit"),
    [("text", "tfid", "tfid"), ("text", "columns", "columns")],
)
def test_features_of_other_data_are_refused(kind: str, name: str, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        features.choose_features(kind, [name] if name else [])


def test_a_map_is_built_and_restored_by_its_name() -> None:
    texts = ["a good film", "a bad film"]
    feature_map = features.build("tfidf", "text")
    feature_map.fit(texts)
    restored = features.restore("tfidf", feature_map.plain(), feature_map.tensors())
    assert np.array_equal(
        restored.transform(texts).toarray(), feature_map.transform(texts).toarray()
    )
