"""Tables: what is written comes out again, row by row; what is damaged is refused in words."""

import csv
import io
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attittud_lab.config.schema import PrimaryConfig, SourceConfig, TableConfig
from attittud_lab.data.cells import take_rows
from attittud_lab.data.features import Features
from attittud_lab.data.source import Listing, open_listing, open_source
from attittud_lab.data.splits import digests
from tests.helpers.data_files import inputs, named, read_path, write_columns
from tests.helpers.data_sets import encoded, read_configuration


def test_shards_of_texts_are_one_split(tmp_path, caplog):
    """Numbers in one file and words in another: read as text, both are labels."""
    write_columns(tmp_path / "train-00000-of-00003.csv", {"text": "ab", "label": "12"})
    write_columns(tmp_path / "train-00001-of-00003.csv", {"text": "cd", "label": ["x", "02"]})
    listing = read_path(tmp_path, "train")
    assert named(listing) == ["1", "2", "x", "02"]
    assert "found only 2 of the 3 files of split train" in caplog.text


def test_rows_are_named_as_in_the_file(tmp_path):
    """Counted from 1, as predictions are, and before `where` leaves some out."""
    columns = {"text": "abcdefghi", "label": "xyxyxyxyx", "site": "uvw" * 3}
    path = write_columns(tmp_path / "a.csv", columns)
    listing = read_path(path, where={"site": "v", "label": "y"})
    assert inputs(listing) == ["b", "h"]
    assert listing.named(np.arange(2)) == [f"{path}, row 2", f"{path}, row 8"]
    (tmp_path / "splits").mkdir()
    for name in ("train", "more"):
        write_columns(tmp_path / "splits" / f"{name}.csv", {"text": name[:2], "label": "xy"})
    two = read_path(tmp_path / "splits", "train+more")
    expected = [f"{tmp_path}/splits (train), row 1", f"{tmp_path}/splits (more), row 2"]
    assert two.named(np.array([0, 3])) == expected


def groups_of(path: Path) -> list[str]:
    config = PrimaryConfig(path=str(path), group="who")
    return open_listing(config, open_source(config.path), None).groups


def test_rows_without_a_group_are_not_one_group(tmp_path, caplog):
    groups = ["p1", None, "p1", "", " ", "p2"]
    columns = {"text": list("abcdef"), "label": list("xyxyxy"), "who": groups}
    found = groups_of(write_columns(tmp_path / "a.csv", columns))
    assert [found[row] for row in (0, 2, 5)] == ["p1", "p1", "p2"] and len(set(found)) == 5
    shown = "3 of 6 rows have no group (column 'who'); each counts as a group of its own"
    assert shown in caplog.text
    columns["who"] = [7.0, math.nan, 8.5, None, 7.0, -1.0]
    numbers = groups_of(write_columns(tmp_path / "b.parquet", columns))
    assert [numbers[row] for row in (0, 2, 4, 5)] == ["7", "8.5", "7", "-1"]
    assert len(set(numbers)) == 5
    assert not {*found} & {*numbers}


def hub_table(labels: list[int], names: list[str], first: int) -> pa.Table:
    encodings = [encoded(first + n) for n in range(len(labels))]
    images = [{"bytes": one, "path": f"../../etc/{n}.png"} for n, one in enumerate(encodings)]
    table = pa.table({"image": images, "label": labels})
    info = {"features": {"label": {"names": names, "_type": "ClassLabel"}}}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": info})})


def test_parquet_files_of_the_hub_are_read(tmp_path):
    names = ["yes", "no"]
    for shard in range(2):
        table = hub_table([0, 1] * 10, names, 20 * shard)
        pq.write_table(table, tmp_path / f"train-0000{shard}-of-00002.parquet")
    pq.write_table(hub_table([1, 0, 1], names, 40), tmp_path / "test-00000-of-00001.parquet")
    data = read_configuration(f"data: {{primary: {{path: {tmp_path}, validation: 10}}}}")
    assert data.primary.classes == names
    assert [len(part) for part in data.all_examples] == [30, 10, 3]
    assert data.test.targets.tolist() == [1, 0, 1]


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
    rows: list[dict[str, Any]] = []
    for number in range(draw.randrange(8, 20)):
        row = {
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
def test_the_format_of_a_file_does_not_matter(tmp_path, seed):
    draw = random.Random(seed)
    rows = random_rows(draw)
    results = []
    for suffix in (".parquet", ".csv", ".tsv", ".jsonl"):
        path = tmp_path / f"rows{suffix}"
        write(path, rows, draw)
        found = listing(path)
        table = take_rows(found.tables, np.arange(len(rows)), "rows")
        results.append((found, table))
    first, first_table = results[0]
    features = Features.fit(first_table, CONFIG, "rows")
    expected = features.encode(first_table, "rows")
    everything = np.arange(len(rows))
    for found, table in results[1:]:
        assert named(found) == named(first) == [row["label"] for row in rows]
        # Numbers of single precision differ in the last digit.
        np.testing.assert_allclose(features.encode(table, "rows"), expected, atol=1e-6)
        assert Features.fit(table, CONFIG, "rows").width == features.width
        np.testing.assert_array_equal(digests(found, everything), digests(first, everything))


def test_rows_that_differ_in_the_last_digits_are_no_copies(tmp_path):
    """In single precision they would be the same."""
    seconds = ["1700000000.25", "1700000010.25", "0.1", "0.10000000000001"]
    columns = {"at": seconds, "code": "1111", "label": "abab"}
    times = listing(write_columns(tmp_path / "times.csv", columns))
    assert len(np.unique(digests(times, np.arange(4)))) == 4
