"""Files of predictions: each format holds the same, and a file is whole or not there."""

import csv
import re
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attittud_lab.errors import InputError
from attittud_lab.predict.inputs import Item
from attittud_lab.predict.outputs import check_output, open_output
from tests.helpers.data_files import read_rows

CLASSES = ["file", 'a, "b"', "\u00fc"]
ITEMS = [Item("a.png", None, b""), Item('odd,"name.csv', 17, "text")]
LIKELY = np.array([[0.25, 0.75, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=np.float32)


def written(path: Path, labels: list[Any], *, several: bool) -> list[dict[str, Any]]:
    """What a reader finds, in the form of jsonl."""
    with open_output(path, CLASSES, several=several) as write:
        write(ITEMS, labels, LIKELY)
        write([], [], LIKELY[:0])
        write(ITEMS[:1], labels[:1], LIKELY[:1])
        assert not path.exists()
    assert [other.name for other in path.parent.iterdir()] == [path.name]
    rows = read_rows(path)
    if path.suffix == ".jsonl":
        return rows
    for row in rows:
        if path.suffix == ".csv":
            row["row"] = int(row["row"]) if row["row"] else None
            if several:
                row["labels"] = row["labels"].split(";") if row["labels"] else []
        row["probabilities"] = {name: float(row.pop(f"p_{name}")) for name in CLASSES}
    return rows


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_all_formats_hold_the_same(tmp_path, suffix, several):
    labels: list[Any] = [["file", "\u00fc"], []] if several else ['a, "b"', "file"]
    rows = written(tmp_path / f"out{suffix}", labels, several=several)
    assert len(rows) == 3 and rows[2] == rows[0]
    for row, item, label, likely in zip(rows, ITEMS, labels, LIKELY, strict=False):
        assert row.keys() == {"file", "row", "labels" if several else "label", "probabilities"}
        expected = (item.file, item.row, label)
        assert (row["file"], row["row"], row["labels" if several else "label"]) == expected
        assert list(row["probabilities"]) == CLASSES
        assert list(row["probabilities"].values()) == pytest.approx(likely.tolist(), rel=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_interrupted_output_leaves_no_file_and_keeps_an_older_one(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    path.write_text("older")

    def predict() -> None:
        with open_output(path, CLASSES, several=False) as write:
            write(ITEMS, ["file", "file"], LIKELY)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict()
    assert path.read_text() == "older" and list(tmp_path.iterdir()) == [path]


def test_a_class_name_with_the_separator_of_labels_is_refused(tmp_path):
    for path in (None, tmp_path / "a.csv"):
        with pytest.raises(InputError, match=r"use --output FILE\.jsonl"):
            check_output(path, [], ["a;b", "c"], several=True)
    check_output(None, [], ["a;b", "c"], several=False)
    check_output(tmp_path / "a.jsonl", [], ["a;b", "c"], several=True)


NASTY = ['=HYPERLINK("http://example.com")', "+1", "-1", "@SUM(A1)", "\tx", "\rx"]
NASTY += ["a;=1", "\uff1d1", "\nx", "a\n=1", "a;\uff0b1"]


@pytest.mark.parametrize("raw", [False, True])
def test_a_spreadsheet_finds_no_formula_in_csv(tmp_path, raw):
    path = tmp_path / "out.csv"
    names = [*NASTY, "plain", ""]
    items = [Item(name, number, b"") for number, name in enumerate(names)]
    labels: list[Any] = [[name, "=2"] for name in names]
    likely = np.full((len(names), len(NASTY)), 0.5, dtype=np.float32)
    with open_output(path, NASTY, several=True, raw=raw) as write:
        write(items, labels, likely)
    with path.open(newline="", encoding="utf-8") as file:
        heading, *rows = csv.reader(file)
    texts = [name + ";=2" for name in names]
    if raw:
        assert [row[0] for row in rows] == names
        assert [row[2] for row in rows] == texts
    else:
        for cell in chain(heading, *rows):
            for part in re.split("[;\n]", cell):  # some spreadsheets begin a new cell there
                assert part[:1] not in tuple("=+-@\t\r\uff1d\uff0b")
        assert [row[0].replace("'", "") for row in rows] == names
        assert [row[2].replace("'", "") for row in rows] == texts
        assert rows[names.index("plain")][0] == "plain"
