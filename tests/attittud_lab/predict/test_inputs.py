"""Inputs are read one after the other, exactly as training reads them; nothing is lost, and what is
damaged is named.
"""

import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from attittud_lab.data import source
from attittud_lab.errors import InputError
from attittud_lab.predict.inputs import Inputs, Item
from attittud_lab.predict.rows import TableRow
from tests.helpers.data_files import CASES, damaged, inputs, read_path

TEXTS = Inputs("text", ["bad", "good"], several=False)
IMAGES = Inputs("image", ["cat", "dog"], several=False)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source.warn_once.cache_clear()
    monkeypatch.chdir(tmp_path)


def read(reader: Inputs, *names: str) -> list[Item]:
    return list(reader.read(names)[1])


def texts(*names: str) -> list[Any]:
    return [item.raw for item in read(TEXTS, *names)]


def typed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))


def picture(path: str, value: int = 0) -> Path:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), value).save(path)
    return Path(path)


# ------------------------------------------------------------------------------------------- tables

ODD = {
    "plain.csv": b"text,label\nfirst,good\nsecond,bad\n",
    "quoted.csv": b'label,text\ngood,"a, ""quoted""\ntext"\nbad,in the "middle\n',
    "below.csv": b"\n\r\ntext,label\nfirst,good\n",
    "blank.csv": b"text,label\n\nfirst,good\n,bad\n\n",
    "mark.csv": b"\xef\xbb\xbftext,label\nfirst,good\n",
    "wide.csv": "text,label\nf\u00fcr,good\n".encode("utf-16"),
    "wider.csv": "text,label\nf\u00fcr,good\n".encode("utf-32"),
    "windows.csv": b"text,label\r\nfirst,good\r\nsecond,bad\r\n",
    "open.csv": b"text,label\nno newline,good",
    "separator.csv": "text,label\na\u2028b\x0bc,good\n".encode(),
    "NA.csv": b"text,label\nNA,good\nnull,bad\n1.0,good\n",
    "tabs.tsv": b"text\tlabel\na, b\tgood\n",
    "plain.jsonl": b'{"text": "first", "label": "good"}\n{"label": "bad", "text": "2020-01-01"}\n',
    "blank.jsonl": b'\n{"text": "a\\nb", "label": "good"}\n\n',
    "wide.jsonl": '{"text": "f\u00fcr", "label": "good"}\n'.encode("utf-16"),
}


@pytest.mark.parametrize("name", ODD)
def test_tables_are_read_as_in_training(name: str) -> None:
    Path(name).write_bytes(ODD[name])
    assert texts(name) == inputs(read_path(name))
    assert all(
        item.truth in ({"good"}, {"bad"}) and item.file == name for item in read(TEXTS, name)
    )


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_damaged_tables_are_refused_or_read_as_in_training(suffix: str) -> None:
    rows = [
        {"text": f'{"word " * (i % 7)}, "{i}"', "label": ["bad", "good"][i % 2]} for i in range(40)
    ]
    path = Path(f"rows{suffix}")
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = ['"{}",{}'.format(row["text"].replace('"', '""'), row["label"]) for row in rows]
        path.write_text("\n".join(["text,label", *lines]))
    content, random_, refused = path.read_bytes(), random.Random(0), 0
    for case in range(CASES):
        path.write_bytes(damaged(content, random_) if case else content)
        try:
            found = texts(path.name)
        except InputError:
            refused += 1
            continue
        try:
            wanted = inputs(read_path(path.name))
        except InputError:
            continue
        assert found == wanted
    assert 0 < refused < CASES


def test_rows_are_identified_by_file_and_number() -> None:
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("text\nfirst\nsecond\n")
    assert [(item.file, item.row) for item in read(TEXTS, "b.csv", "a.csv")] == [
        ("b.csv", 1),
        ("b.csv", 2),
        ("a.csv", 1),
        ("a.csv", 2),
    ]


def test_the_columns_of_the_run_are_read() -> None:
    Path("a.csv").write_text("body,text,stars\nright,wrong,good\n")
    (item,) = read(Inputs("text", ["good"], False, "body", "stars"), "a.csv")
    assert item.raw == "right" and item.truth == {"good"}
    (item,) = read(Inputs("text", ["good"], False, "body", "gone"), "a.csv")
    assert item.truth is None
    with pytest.raises(
        InputError,
        match=r"no column title; name the column of the texts with --input. Its columns are body, text, stars",
    ):
        read(Inputs("text", ["good"], False, "title"), "a.csv")
    Path("a.csv").write_text("body;text\na;b\n")
    with pytest.raises(
        InputError,
        match=r"Its columns are body;text \(its cells seem to be separated by semicolons",
    ):
        texts("a.csv")
    Path("a.csv").write_text("text,text\na,b\n")
    with pytest.raises(InputError, match="more than once"):
        texts("a.csv")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"text,label\nfirst,good\nsecond\n", "row 2 has 1 cells"),
        (b"text,label\nf\xfcr,good\n", "not UTF-8"),
    ],
)
def test_a_damaged_csv_names_its_row(content: bytes, said: str) -> None:
    Path("a.csv").write_bytes(content)
    with pytest.raises(InputError, match=said) as raised:
        texts("a.csv")
    assert "a.csv" in str(raised.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "a"', "line 2 is not JSON"),
        (b'{"other": "a"}', "line 2: no column is called image, img, text"),
    ],
)
def test_a_damaged_jsonl_names_its_line(line: bytes, said: str) -> None:
    Path("a.jsonl").write_bytes(b'{"text": "whole"}\n' + line + b"\n")
    with pytest.raises(InputError, match=said):
        texts("a.jsonl")


def test_labels_may_be_names_numbers_or_lists() -> None:
    names = {b"class_names": json.dumps(["bad", "good"]).encode()}
    table = pa.table(
        {"text": ["a", "b", "c"], "label": pa.array([1, 0, None])}
    ).replace_schema_metadata(names)
    pq.write_table(table, "a.parquet")
    assert [item.truth for item in read(TEXTS, "a.parquet")] == [{"good"}, {"bad"}, None]
    several = Inputs("text", ["1", "2"], several=True)
    Path("a.jsonl").write_text(
        '{"text": "a", "label": [1, 0, 1]}\n{"text": "b", "label": [0, 1]}\n'
    )
    assert [item.truth for item in read(several, "a.jsonl")] == [{"2"}, None]
    Path("a.jsonl").write_text('{"text": "a", "label": null}\n{"text": "b", "label": "None"}\n')
    assert [item.truth for item in read(Inputs("text", ["None"], False), "a.jsonl")] == [
        None,
        {"None"},
    ]
    pq.write_table(
        pa.table({"text": ["a", "b", "c"], "label": [1.0, None, float("nan")]}), "a.parquet"
    )
    assert [item.truth for item in read(Inputs("text", ["1", "nan"], False), "a.parquet")] == [
        {"1"},
        None,
        None,
    ]
    Path("a.csv").write_text("text,label\na, 1\nb,9\nc,\n")
    assert [item.truth for item in read(Inputs("text", ["1", "2"], False), "a.csv")] == [
        {"1"},
        None,
        None,
    ]


@pytest.mark.parametrize("suffix", [".csv"])
def test_rows_of_features_keep_the_types_of_their_file(suffix: str) -> None:
    table = pa.table(
        {
            "x": pa.array([0.1, 0.2] * 300, pa.float32()),
            "c": ["a", None] * 300,
            "label": ["good"] * 600,
        }
    )
    if suffix == ".csv":
        table = pa.table(
            {name: pa.array(map(str, table[name].to_pylist())) for name in table.column_names}
        )
        pa.csv.write_csv(table, "a.csv")
    else:
        pq.write_table(table, "a.parquet")
    found = read(Inputs("table", ["good"], False), f"a{suffix}")
    rows = [item.raw for item in found if isinstance(item.raw, TableRow)]
    assert len(rows) == 600 and all(item.truth == {"good"} for item in found)
    slices = [row.table.slice(row.position, 1) for row in rows]
    assert pa.concat_tables(slices).combine_chunks().equals(table)


# ------------------------------------------------------------------------------------------- images


def test_a_folder_is_read_with_all_folders_in_it(caplog: pytest.LogCaptureFixture) -> None:
    for name in (
        "b/cat/2.png",
        "b/cat/10.png",
        "b/dog/deep/1.PNG",
        "b/0.png",
        "b/.hidden.png",
        "b/.git/x.png",
    ):
        picture(name)
    Path("b/notes.txt").write_text("other")
    total, items = IMAGES.read(["b"])
    found = list(items)
    assert total == len(found) == 4
    assert [item.file for item in found] == [
        "b/0.png",
        "b/cat/10.png",
        "b/cat/2.png",
        "b/dog/deep/1.PNG",
    ]
    assert [item.truth for item in found] == [None, {"cat"}, {"cat"}, {"dog"}]
    assert "1 file is left out" in caplog.text


def test_linked_folders_are_skipped_with_a_message_and_links_out_of_the_folder_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    picture("there/1.png")
    picture("here/1.png")
    Path("here/folder").symlink_to(Path("there").resolve())
    assert len(read(IMAGES, "here")) == 1 and "is a link to a folder" in caplog.text
    Path("here/2.png").symlink_to(Path("there/1.png").resolve())
    with pytest.raises(InputError, match="is a link out of here"):
        read(IMAGES, "here")
    assert len(read(IMAGES, "here/2.png")) == 1  # it was named itself


@pytest.mark.parametrize(
    ("name", "said"),
    [("nowhere", "no such file or folder"), ("picture.png", "cannot read texts from a .png")],
)
def test_missing_files_are_refused(name: str, said: str) -> None:
    Path("empty").mkdir()
    picture("picture.png")
    with pytest.raises(InputError, match=said):
        texts(name)


# ----------------------------------------------------------------------------------- standard input


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"first\n\n{ third\r\nlast", [(1, "first"), (2, ""), (3, "{ third"), (4, "last")]),
        (b'\n{"text": "a"}\n\n{"text": "b"}', [(2, "a"), (4, "b")]),
    ],
)
def test_texts_can_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, content: bytes, wanted: list[Any]
) -> None:
    typed(monkeypatch, content)
    found = read(TEXTS, "-")
    assert [(item.row, item.raw) for item in found] == wanted and all(
        item.file == "-" for item in found
    )
