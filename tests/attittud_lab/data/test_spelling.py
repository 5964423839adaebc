"""Cells that are the same in all formats have one spelling; others stay apart."""

import math

import pytest

from attittud_lab.data.spelling import folded, number_in


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("TRUE", "True"),
        ("false", "False"),
        ("1.0", "1"),
        ("-20.", "-20"),
        ("0.10000000149011612", "0.1"),
    ],
)
def test_all_file_formats_share_one_spelling(text: str, spelling: str) -> None:
    assert folded(text) == folded(spelling) == spelling


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_other_texts_stay_as_they_are() -> None:
    texts = [
        "",
        "01",
        "1.5",
        "truth",
        "F",
        "16777217",
        "1.0000000001e50",
        "0.1234567890123",
        "1.0.0",
        "v1.0",
    ]
    assert [folded(text) for text in texts] == texts


def test_numbers_are_found_in_texts() -> None:
    assert number_in("01") == number_in("1.0") == 1 and number_in("-1e3") == -1000
    gap = number_in("")
    assert gap is not None and math.isnan(gap)
    assert all(number_in(text) is None for text in ("NA", "1,5", "0x10", "1_000", "nan"))
