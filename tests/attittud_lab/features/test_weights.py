"""Checksums of encoders: a change of any file or name is another encoder."""

from pathlib import Path

import pytest

from attittud_lab.errors import InputError
from attittud_lab.features.weights import checksum


def test_a_checksum_follows_names_and_contents(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    before = checksum([first, second])
    assert checksum([second, first]) == before
    second.write_bytes(b"3")
    assert checksum([first, second]) != before
    assert checksum([first]) != before
    first.unlink()
    with pytest.raises(InputError, match=str(first)):
        checksum([first, second])
