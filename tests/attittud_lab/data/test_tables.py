"""Tables: what is written comes out again, row by row; what is damaged is refused in words."""

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attittud_lab.config.schema import PrimaryConfig
from attittud_lab.data.source import open_listing, open_source
from attittud_lab.errors import InputError
from tests.helpers.data_files import inputs, named, read_path
from tests.helpers.data_sets import encoded, read_configuration, write_texts

LABELS = ["NA", "None", "01", "no", "1.0", "null", "nan", "True", "007", "1e5", "2020-01-01"]
CLASSES = ["1" if label == "1.0" else label for label in LABELS]


# ------------------------------------------------------------------------ what is written comes out


def write_csv(path: Path, texts: Sequence[str], labels: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([("text", "label"), *zip(texts, labels, strict=True)])


def write_parquet(path: Path, texts: Sequence[str], labels: Sequence[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": texts, "label": labels}), path)


@pytest.mark.parametrize(
    ("name", "write"),
    [("rows.csv", write_csv), ("rows.parquet", write_parquet)],
)
def test_odd_labels_and_empty_texts_survive(
    tmp_path: Path, name: str, write: Callable[[Path, Sequence[str], Sequence[str]], None]
) -> None:
    texts = [
        "",
        "NA",
        "12",
        " blanks ",
        'quoted "words", and\na line',
        "null",
        "1.50",
        "true",
        "2020-01-01",
        "\u00e9",
        "x",
    ]
    write(tmp_path / name, texts, LABELS)
    hub = name.startswith("data/")
    listing = read_path(tmp_path if hub else tmp_path / name, "train" if hub else None)
    assert inputs(listing) == texts and named(listing) == CLASSES
    assert listing.classes == ["1", *sorted({*CLASSES} - {"1"})]


@pytest.mark.parametrize("suffix", ["csv"])
def test_whole_numbers_are_classes_in_their_order(tmp_path: Path, suffix: str) -> None:
    numbers = [10, 2, -1, 99_999, 0, 2]
    texts = [f"text {n}" for n in range(6)]
    path = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"text": texts, "label": numbers}), path)
    elif suffix == "csv":
        write_csv(path, texts, [str(number) for number in numbers])
    else:
        path.write_text(
            "".join(
                json.dumps({"text": t, "label": n}) + "\n"
                for t, n in zip(texts, numbers, strict=True)
            )
        )
    listing = read_path(path)
    assert listing.classes == ["0", "2", "10", "99999"] and named(listing) == [
        "10",
        "2",
        None,
        "99999",
        "0",
        "2",
    ]


def test_shards_of_texts_are_one_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers in one file and words in another: read as text, both are labels."""
    write_csv(tmp_path / "train-00000-of-00003.csv", ["a", "b"], ["1", "2"])
    write_csv(tmp_path / "train-00001-of-00003.csv", ["c", "d"], ["x", "02"])
    listing = read_path(tmp_path, "train")
    assert named(listing) == ["1", "2", "x", "02"]
    assert "found only 2 of the 3 files of split train" in caplog.text


def test_values_in_where_are_compared_with_the_text_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label,flag,code\na,x,true,01\nb,y,false,1\n")
    assert inputs(read_path(path, where={"code": "01"})) == ["a"]
    assert inputs(read_path(path, where={"flag": "True"})) == ["a"]
    with pytest.raises(
        InputError, match=r"no row has '001' in column 'code' .* its values are 01, 1"
    ):
        read_path(path, where={"code": "001"})


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
    assert two.named(np.array([3, 0])) == [
        f"{tmp_path}/splits (more), row 2",
        f"{tmp_path}/splits (train), row 1",
    ]


def groups_of(path: Path) -> list[str]:
    return (
        open_listing(
            PrimaryConfig(path=str(path), group="who"), open_source(str(path)), None
        ).groups
        or []
    )


@pytest.mark.parametrize("suffix", ["csv"])
def test_rows_without_a_group_are_not_one_group(
    suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, groups = tmp_path / f"a.{suffix}", ["p1", None, "p1", "", " ", "p2"]
    columns = {"text": list("abcdef"), "label": list("xyxyxy"), "who": groups}
    if suffix == "csv":
        rows = zip(*([cell or "" for cell in column] for column in columns.values()), strict=True)
        path.write_text("\n".join(",".join(row) for row in [tuple(columns), *rows]))
    else:
        pq.write_table(pa.table(columns), path)
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


def two_columns(path: Path, metadata: dict[str, Any]) -> Path:
    """As CIFAR-100: eight fine classes, of which each two belong to one coarse class."""
    table = pa.table(
        {
            "text": [f"text {n}" for n in range(16)],
            "fine_label": [n % 8 for n in range(16)],
            "coarse_label": [n % 8 // 2 for n in range(16)],
        }
    )
    pq.write_table(
        table.replace_schema_metadata({key: json.dumps(value) for key, value in metadata.items()}),
        path,
    )
    return path


FINE, COARSE = [f"fine {n}" for n in range(8)], [f"coarse {n}" for n in range(4)]


@pytest.mark.parametrize(
    "metadata",
    [
        {
            "huggingface": {
                "info": {
                    "features": {
                        "text": {"dtype": "string", "_type": "Value"},
                        "fine_label": {"names": FINE, "_type": "ClassLabel"},
                        "coarse_label": {"names": COARSE, "_type": "ClassLabel"},
                    }
                }
            }
        },
        {"class_names": {"fine_label": FINE, "coarse_label": COARSE}},
    ],
    ids=["hub", "mapping"],
)
def test_each_label_column_has_its_own_names(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = two_columns(tmp_path / "a.parquet", metadata)
    for column, names in {None: FINE, "fine_label": FINE, "coarse_label": COARSE}.items():
        listing = read_path(path, label=column)
        assert listing.classes == names and set(named(listing)) == set(names)
        few = read_path(
            path, label=column, where={"fine_label": "3"}
        )  # without examples of most classes
        assert few.classes == names and few.count == 2


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


@pytest.mark.parametrize("column", ["image"])
def test_parquet_files_of_the_hub_are_read(tmp_path: Path, column: str) -> None:
    names = ["yes", "no"]
    for shard in range(2):
        table = hub_table([0, 1] * 10, column, names, 20 * shard)
        pq.write_table(table, tmp_path / f"train-0000{shard}-of-00002.parquet")
    pq.write_table(
        hub_table([1, 0, 1], column, names, 40), tmp_path / "test-00000-of-00001.parquet"
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


def test_tables_may_have_several_labels_per_row(tmp_path: Path) -> None:
    images = [{"bytes": encoded(number, mode="L"), "path": None} for number in range(20)]
    table = pa.table(
        {"image": images, "labels": [[number % 2, 1, int(number % 4 == 0)] for number in range(20)]}
    )
    pq.write_table(
        table.replace_schema_metadata({"class_names": json.dumps(["x", "y", "z"])}),
        tmp_path / "a.parquet",
    )
    data = read_configuration(f"data: {{primary: {{path: {tmp_path}/a.parquet, classes: [z, x]}}}}")
    assert data.primary.objective == "multi_label" and data.primary.classes == ["z", "x"]
    assert data.primary.examples.inputs.shape[1:] == (1, 8, 8)
    assert data.primary.examples.targets is not None and data.primary.examples.targets.shape == (
        12,
        2,
    )
    assert data.primary.examples.targets[:, 0].sum() == 3  # of 5, in proportion


@pytest.mark.parametrize("suffix", ["tsv"])
def test_tables_of_texts_are_read(tmp_path: Path, suffix: str) -> None:
    path = write_texts(tmp_path / f"texts.{suffix}", ["no", "NA"] * 10)
    data = read_configuration(
        f"data: {{primary: {path}, auxiliary: {{lm: {{path: {path}, objective: masked_lm}}}}}}"
    )
    assert data.kind == "text" and data.primary.classes == ["NA", "no"]
    # Language modelling may use the training texts again, but never the texts of validation and
    # test.
    assert (
        data.auxiliary["lm"].objective == "masked_lm"
        and len(data.auxiliary["lm"].examples) == len(data.primary.examples) == 12
    )


def test_empty_cells_are_no_class_and_categories_of_pandas_are_texts(tmp_path: Path) -> None:
    """An empty cell is not a class; pandas' categories are texts."""
    rows = [f"words of {i},{('no', 'yes')[i % 2]}\n" for i in range(20)]
    (tmp_path / "t.csv").write_text("text,label\n" + "".join([*rows, "nobody has judged this,\n"]))
    labels = pa.array(["no", "yes"] * 10).dictionary_encode()
    pq.write_table(
        pa.table({"text": [f"words of {i}" for i in range(20)], "label": labels}),
        tmp_path / "t.parquet",
    )
    for name in ("t.csv", "t.parquet"):
        data = read_configuration(f"data: {{primary: {tmp_path / name}}}\nmodel: text-cnn")
        assert data.primary.classes == ["no", "yes"]
        assert sum(map(len, (data.primary.examples, data.validation, data.test))) == 20
