"""The registry: what is tried by default, with and without packages, and names that are refused."""

import importlib.util

import pytest

from attittud_lab import features
from attittud_lab.errors import InputError


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Make packages look as if they were not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(features, "find_spec", lambda name: None if name in modules else real(name))


@pytest.mark.parametrize(
    ("kind", "name", "culprit"),
    [("text", "tfid", "tfid"), ("text", "columns", "columns")],
)
def test_features_of_other_data_are_refused(kind: str, name: str, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        features.choose_features(kind, [name])
