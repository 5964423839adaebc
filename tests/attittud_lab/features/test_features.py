"""The registry: names that are refused."""

import pytest

from attittud_lab import features
from attittud_lab.errors import InputError


@pytest.mark.parametrize(
    ("kind", "name", "culprit"),
    [("text", "tfid", "tfid"), ("text", "columns", "columns")],
)
def test_features_of_other_data_are_refused(kind, name, culprit):
    with pytest.raises(InputError, match=culprit):
        features.choose_features(kind, [name])
