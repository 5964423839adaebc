"""Cells that are the same in all formats have one spelling; others stay apart."""

import pytest

from attittud_lab.data.spelling import folded


@pytest.mark.parametrize(
    ("text", "spelling"),
    [("TRUE", "True"), ("1.0", "1"), ("0.10000000149011612", "0.1")],
)
def test_all_file_formats_share_one_spelling(text, spelling):
    assert folded(text) == folded(spelling) == spelling


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_other_texts_stay_as_they_are():
    texts = ["", "01", "1.5", "truth", "F", "16777217", "1.0.0", "v1.0"]
    texts += ["1.0000000001e50", "0.1234567890123"]
    assert [folded(text) for text in texts] == texts
