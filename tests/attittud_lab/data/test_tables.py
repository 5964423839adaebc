"""Tables: what is written comes out again, row by row; what is damaged is refused in words."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attittud_lab.config.schema import PrimaryConfig
from attittud_lab.data.source import open_listing, open_source
from tests.helpers.data_files import inputs, named, read_path
from tests.helpers.data_sets import encoded, read_configuration

# ------------------------------------------------------------------------ what is written comes out


def write_csv(path: Path, texts: Sequence[str], labels: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([("text", "label"), *zip(texts, labels, strict=True)])


def test_shards_of_texts_are_one_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers in one file and words in another: read as text, both are labels."""
    write_csv(tmp_path / "train-00000-of-00003.csv", ["a", "b"], ["1", "2"])
    write_csv(tmp_path / "train-00001-of-00003.csv", ["c", "d"], ["x", "02"])
    listing = read_path(tmp_path, "train")
    assert named(listing) == ["1", "2", "x", "02"]
    assert "found only 2 of the 3 files of split train" in caplog.text


def test_rows_are_named_as_in_the_file(tmp_path: Path) -> None:
    """Counted from 1, as predictions are, and before `where` leaves some out."""
    path = tmp_path / "a.csv"
    path.write_text(
        "text,label,site\n" + "".join(f"text {n},{'xy'[n % 2]},{'uvw'[n % 3]}\n" for n in range(9))
    )
    listing = read_path(path, where={"site": "v", "label": "y"})
    assert inputs(listing) == ["text 1", "text 7"]
    assert listing.named(np.arange(2)) == [f"{path}, row 2", f"{path}, row 8"]
    for name in ("train", "more"):
        (tmp_path / "splits").mkdir(exist_ok=True)
        write_csv(tmp_path / "splits" / f"{name}.csv", [f"{name} a", f"{name} b"], ["x", "y"])
    two = read_path(tmp_path / "splits", "train+more")
    assert two.named(np.array([0, 3])) == [
        f"{tmp_path}/splits (train), row 1",
        f"{tmp_path}/splits (more), row 2",
    ]


def groups_of(path: Path) -> list[str]:
    return (
        open_listing(
            PrimaryConfig(path=str(path), group="who"), open_source(str(path)), None
        ).groups
        or []
    )


def test_rows_without_a_group_are_not_one_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, groups = tmp_path / "a.csv", ["p1", None, "p1", "", " ", "p2"]
    columns = {"text": list("abcdef"), "label": list("xyxyxy"), "who": groups}
    rows = zip(*([cell or "" for cell in column] for column in columns.values()), strict=True)
    path.write_text("\n".join(",".join(row) for row in [tuple(columns), *rows]))
    found = groups_of(path)
    assert [found[row] for row in (0, 2, 5)] == ["p1", "p1", "p2"] and len(set(found)) == 5
    assert (
        "3 of 6 rows have no group (column 'who'); each counts as a group of its own" in caplog.text
    )
    pq.write_table(
        pa.table(columns | {"who": [7.0, math.nan, 8.5, None, 7.0, -1.0]}), tmp_path / "b.parquet"
    )
    numbers = groups_of(tmp_path / "b.parquet")
    assert [numbers[row] for row in (0, 2, 4, 5)] == ["7", "8.5", "7", "-1"] and len(
        set(numbers)
    ) == 5
    assert not {*found} & {*numbers}


# -------------------------------------------------------------------------------- two label columns


FINE, COARSE = [f"fine {n}" for n in range(8)], [f"coarse {n}" for n in range(4)]


def hub_table(
    labels: list[int], column: str = "image", names: list[str] | None = None, first: int = 0
) -> pa.Table:
    images = [
        {"bytes": encoded(first + n), "path": f"../../etc/{n}.png"} for n in range(len(labels))
    ]
    table = pa.table({column: images, "label": labels})
    features = {"label": {"names": names, "_type": "ClassLabel"}} if names else {}
    return table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def test_parquet_files_of_the_hub_are_read(tmp_path: Path) -> None:
    names = ["yes", "no"]
    for shard in range(2):
        table = hub_table([0, 1] * 10, "image", names, 20 * shard)
        pq.write_table(table, tmp_path / f"train-0000{shard}-of-00002.parquet")
    pq.write_table(
        hub_table([1, 0, 1], "image", names, 40), tmp_path / "test-00000-of-00001.parquet"
    )
    data = read_configuration(f"data: {{primary: {{path: {tmp_path}, validation: 10}}}}")
    assert data.primary.classes == names and (
        len(data.primary.examples),
        len(data.validation),
        len(data.test),
    ) == (
        30,
        10,
        3,
    )
    assert data.test.targets is not None and data.test.targets.tolist() == [1, 0, 1]
