"""A label means the same in every file format, whatever the other cells of its column are."""

import math
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attittud_lab.data.labels import class_names, label_of, labels_of
from attittud_lab.errors import InputError
from attittud_lab.predict.inputs import Inputs
from tests.helpers.data_files import inputs, named, read_path, write_columns

FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")


@pytest.mark.parametrize(
    ("cells", "label"),
    [
        ((None, math.nan, "", " ", "\u00a0", -1, -1.0, "-1", " -7.0 ", Decimal(-2)), None),
        ((0, 0.0, -0.0, "0", "0.0", "-0.0", " 0 "), "0"),
        ((12, 12.0, "12", "12.", "12.00", Decimal(12)), "12"),
        ((True, "True", "true", "TRUE"), "True"),
    ],
)
def test_cells_of_one_meaning_have_one_label(cells, label):
    assert {label_of(cell) for cell in cells} == {label}


def test_other_cells_are_their_own_label():
    for cell in ("NA", "nan", "01", "1e5", "no", " yes", "v1.0", "1_0", "\u0661", "9" * 5000):
        assert label_of(cell) == cell
    assert label_of(2**64 - 1) == str(2**64 - 1)


def test_numbers_have_the_names_of_the_file():
    expected = ["no", "yes", "yes", None, None, "2"]
    assert [label_of(cell, ["no", "yes"]) for cell in (0, 1.0, True, -1, None, 2)] == expected


def columns(cells: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(cells, min_size=1, max_size=12)


ODD = ["", " ", "-1", "0", "1.0", "2", "-3.0", " 1", "yes", "NA", "None", "true", "01", "=1+1", '"']


@given(
    columns(st.none() | st.integers(-2, 12))
    | columns(st.none() | st.integers(-2, 12).map(float))
    | columns(st.none() | st.booleans())
    | columns(st.none() | st.sampled_from(ODD))
)
@settings(max_examples=60, deadline=None)
def test_every_format_reads_the_same_labels_for_training_and_prediction(cells):
    wanted = [label_of(cell) for cell in cells]
    texts = [f"text {number}" for number in range(len(cells))]
    with tempfile.TemporaryDirectory() as folder:
        for suffix in FORMATS:
            path = write_columns(Path(folder) / f"a{suffix}", {"text": texts, "label": cells})
            listing = read_path(path)
            assert named(listing) == wanted
            assert inputs(listing) == texts
            _, items = Inputs("text", listing.classes, several=False).read([str(path)])
            found = [(item.raw, item.truth) for item in items]
            assert found == [
                (text, label and {label}) for text, label in zip(texts, wanted, strict=True)
            ]


def test_class_names_with_half_a_character_are_refused():
    """No file with predictions could hold them."""
    table = pa.table({"label": [0, 1]}, metadata={"class_names": '["\\ud83d", "b"]'})
    with pytest.raises(InputError, match="half a character"):
        labels_of(table, "label", "column 'label'")


def test_a_list_of_class_names_is_for_the_usual_column_and_for_one_with_as_many_labels():
    columns = {"label": [0, 0, 0], "breed": [2, 0, 1], "owner": [1, 0, 1]}
    table = pa.table(columns, metadata={"class_names": '["cat", "dog", "fox"]'})
    names = ["cat", "dog", "fox"]
    assert [class_names(table, column) for column in columns] == [names, names, None]
