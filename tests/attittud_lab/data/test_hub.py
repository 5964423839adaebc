"""`hf:owner/name` through the package `datasets`, with a hub of this process."""

import sys

import pytest

from attittud_lab.errors import InputError
from tests.helpers.data_sets import read_configuration


def test_without_datasets_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    with pytest.raises(InputError, match=r"needs the package 'datasets'.*attittud\[hub\]"):
        read_configuration("data: {primary: 'hf:owner/name'}")
