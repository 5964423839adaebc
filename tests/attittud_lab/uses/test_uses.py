"""The registry of uses."""

import pytest

from attittud_lab.errors import InputError
from attittud_lab.uses import find_use, uses


def test_uses_are_found_by_name_and_a_misspelt_one_is_named():
    assert uses()[0] == "alone"
    assert all(find_use(name).name == name for name in uses())
    with pytest.raises(InputError, match="poold"):
        find_use("poold")
