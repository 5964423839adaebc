"""The same rows in every file format: equal features, equal labels, and copies of each other."""

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attittud_lab.config.schema import SourceConfig, TableConfig
from attittud_lab.data.features import Features, taken
from attittud_lab.data.source import Listing, open_listing, open_source
from attittud_lab.data.splits import digests
from tests.helpers.data_files import named

COLUMNS = {
    "single": pa.float32(),
    "double": pa.float64(),
    "gaps": pa.float64(),
    "whole": pa.int16(),
    "truth": pa.bool_(),
    "word": pa.string(),
    "code": pa.int32(),
    "label": pa.string(),
}
CONFIG = TableConfig(categorical=["code"])


def random_rows(draw: random.Random) -> list[dict[str, Any]]:
    rows = []
    for number in range(draw.randrange(8, 20)):
        row: dict[str, Any] = {
            "single": float(np.float32(draw.gauss(0, 1))),
            "double": draw.choice([draw.gauss(0, 1), 0.1, -0.0, 1e300, 3.0]),
            "gaps": None if number and draw.random() < 0.3 else draw.gauss(0, 1),
            "whole": draw.randrange(-5, 20),
            "truth": draw.choice([True, False]),
            "word": draw.choice(["u", "Zürich", "a,b", 'q"q', "a\nb"]),
            "code": draw.choice([1, 2, 7]),
            "label": draw.choice(["1", "cat", "no"]),
        }
        rows.append(row)
    return rows


def csv_cell(draw: random.Random, name: str, value: Any) -> str:
    """One of the spellings that programs give a cell."""
    if value is None:
        return draw.choice(["", "NA", "null", "?"])
    if name == "truth":
        return draw.choice(["TRUE", "true", "True"] if value else ["FALSE", "false", "False"])
    if name in ("whole", "code"):
        return draw.choice([f"{value}", f"{value}.0"])
    if name == "single":
        return str(pa.scalar(value, pa.float32()).cast(pa.string()))
    return repr(value) if name in ("double", "gaps") else str(value)


def write(path: Path, rows: list[dict[str, Any]], draw: random.Random) -> None:
    if path.suffix == ".parquet":
        columns = {name: pa.array([row[name] for row in rows], COLUMNS[name]) for name in COLUMNS}
        pq.write_table(pa.table(columns), path)
        return
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        stream = io.StringIO()
        end = draw.choice(["\n", "\r\n"])
        delimiter = "\t" if path.suffix == ".tsv" else ","
        writer = csv.writer(stream, delimiter=delimiter, lineterminator=end)
        writer.writerow(list(COLUMNS))
        for row in rows:
            writer.writerow([csv_cell(draw, name, row[name]) for name in COLUMNS])
        text = stream.getvalue()
    path.write_bytes(text.encode(draw.choice(["utf-8", "utf-8-sig", "utf-16", "utf-32"])))


def listing(path: Path) -> Listing:
    config = SourceConfig(path=str(path), label="label")
    return open_listing(config, open_source(config.path), None, CONFIG)


@pytest.mark.parametrize("seed", range(4))
def test_the_format_of_a_file_does_not_matter(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    rows = random_rows(draw)
    results = []
    for suffix in (".parquet", ".csv", ".tsv", ".jsonl"):
        path = tmp_path / f"rows{suffix}"
        write(path, rows, draw)
        found = listing(path)
        table = taken(found.tables, np.arange(len(rows)), "rows")
        results.append((found, table))
    first, first_table = results[0]
    features = Features.fit(first_table, CONFIG, "rows")
    expected = features.encode(first_table, "rows")
    for found, table in results[1:]:
        assert named(found) == named(first) == [row["label"] for row in rows]
        # Numbers of single precision differ in the last digit.
        np.testing.assert_allclose(features.encode(table, "rows"), expected, atol=1e-6)
        fitted = Features.fit(table, CONFIG, "rows")
        assert fitted.width == features.width
        ours = digests(first, np.arange(len(rows)))
        np.testing.assert_array_equal(digests(found, np.arange(len(rows))), ours)


def test_rows_that_differ_in_the_last_digits_are_no_copies(tmp_path: Path) -> None:
    """In single precision they would be the same."""
    path = tmp_path / "times.csv"
    path.write_text(
        "at,code,label\n1700000000.25,1,a\n1700000010.25,1,b\n0.1,1,a\n0.10000000000001,1,b\n"
    )
    times = listing(path)
    assert len(np.unique(digests(times, np.arange(4)))) == 4
