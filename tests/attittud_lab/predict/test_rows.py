"""Rows of tables become the same features alone, among others, and as a whole table."""

import numpy as np
import pyarrow as pa
import pytest

from attittud_lab.config.schema import TableConfig
from attittud_lab.data.features import Features
from attittud_lab.errors import InputError
from attittud_lab.predict.rows import encoded, rows_of

TABLE = pa.table({"x": [1.0, 2.0, 3.0, 5.0], "dose": pa.array([0.1, 0.2, 0.3, 0.1], pa.float32())})
FEATURES = Features.fit(TABLE, TableConfig(categorical=["dose"]), "file")
NAMES = [f"row {number}" for number in range(9)]


def test_numbers_in_single_precision_stay_the_same_categories() -> None:
    found = encoded(FEATURES, rows_of(TABLE), NAMES[:4], set())
    np.testing.assert_array_equal(found, FEATURES.encode(TABLE, "file"))
    assert not found[:, -1].any()  # no unknown category


def test_rows_of_several_tables_and_mappings_can_be_mixed() -> None:
    double = pa.table({"x": [1, 2], "dose": ["0.1", "0.2"]})
    rows = [
        *rows_of(TABLE)[2:],
        *rows_of(double),
        {"x": "5", "dose": 0.3},
        {"x": 1.5, "dose": None},
        rows_of(TABLE)[0],
    ]
    together = encoded(FEATURES, rows, NAMES[:7], set())
    alone = [encoded(FEATURES, [row], ["row"], set())[0] for row in rows]
    np.testing.assert_array_equal(together, np.stack(alone))
    assert encoded(FEATURES, [], [], set()).shape == (0, FEATURES.width)


def test_the_row_that_cannot_be_read_is_named(caplog: pytest.LogCaptureFixture) -> None:
    wrong = pa.table({"x": ["1", "high", "3"], "dose": ["0.9", "0.1", "0.1"]})
    with pytest.raises(InputError, match=r"^row 5: column 'x' holds 'high'"):
        encoded(FEATURES, [*rows_of(TABLE), *rows_of(wrong)], NAMES[:7], set())
    with pytest.raises(InputError, match=r"^row 2: needs the columns dose"):
        encoded(FEATURES, [{"x": 1, "dose": 0.1}] * 2 + [{"x": 1}] * 2, NAMES[:4], set())
    assert not caplog.text  # the search for the row says nothing about its other cells
