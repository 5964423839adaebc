"""The registry: names that are refused, and packages that are missing."""

import re
import tomllib

import pytest

from attittud_lab import features
from attittud_lab.errors import InputError
from tests.helpers.pages import ROOT


@pytest.mark.parametrize(
    ("kind", "name", "culprit"),
    [("text", "tfid", "tfid"), ("text", "columns", "columns")],
)
def test_features_of_other_data_are_refused(kind, name, culprit):
    with pytest.raises(InputError, match=culprit):
        features.choose_features(kind, [name])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("text", "minilm"),
        ("image", "efficientnet"),
        ("text", "hf:some/folder"),
        ("image", "timm:resnet18"),
    ],
)
def test_a_missing_package_is_in_the_extra_that_the_error_names(kind, name, monkeypatch):
    """Every extra that the message names has the packages of these features."""
    monkeypatch.setattr(features, "find_spec", lambda _: None)
    with pytest.raises(InputError) as error:
        features.choose_features(kind, [name])
    (extra,) = set(re.findall(r"\[(\w+)\]", str(error.value)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = " ".join(project["optional-dependencies"][extra]).replace("-", "_")
    entry, _ = features.find(name)
    assert entry.missing
    for module in entry.missing:
        assert module in packages
