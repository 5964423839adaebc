"""Inputs are read as training reads them; nothing is lost, and what is damaged is named."""

import io
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
from tests.helpers.data_files import inputs, read_path, write_columns

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


def picture(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4)).save(path)


ODD = {
    "quoted.csv": b'label,text\ngood,"a, ""quoted""\ntext"\nbad,in the "middle\n',
    "blank.csv": b"\n\r\ntext,label\n\nfirst,good\n,bad\n\n",
    "windows.csv": b"text,label\r\nfirst,good\r\nsecond,bad\r\n",
    "separator.csv": "text,label\na\u2028b\x0bc,good\n".encode(),
    "NA.csv": b"text,label\nNA,good\nnull,bad\n1.0,good\n",
    "tabs.tsv": b"text\tlabel\na, b\tgood\n",
    "blank.jsonl": b'\n{"text": "a\\nb", "label": "good"}\n\n',
}


@pytest.mark.parametrize("name", ODD)
def test_tables_are_read_as_in_training(name):
    Path(name).write_bytes(ODD[name])
    assert texts(name) == inputs(read_path(name))
    for item in read(TEXTS, name):
        assert item.truth in ({"good"}, {"bad"}) and item.file == name


def test_rows_are_identified_by_file_and_number():
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("text\nfirst\nsecond\n")
    expected = [("b.csv", 1), ("b.csv", 2), ("a.csv", 1), ("a.csv", 2)]
    assert [(item.file, item.row) for item in read(TEXTS, "b.csv", "a.csv")] == expected


def test_the_columns_of_the_run_are_read():
    Path("a.csv").write_text("body,text,stars\nright,wrong,good\n")
    (item,) = read(Inputs("text", ["good"], False, "body", "stars"), "a.csv")
    assert item.raw == "right" and item.truth == {"good"}
    (item,) = read(Inputs("text", ["good"], False, "body", "gone"), "a.csv")
    assert item.truth is None
    with pytest.raises(InputError, match=r"title.*--input"):
        read(Inputs("text", ["good"], False, "title"), "a.csv")


def test_labels_may_be_names_numbers_or_lists():
    columns = {"text": ["a", "b", "c"], "label": [1, 0, None]}
    pq.write_table(pa.table(columns, metadata={"class_names": '["bad", "good"]'}), "a.parquet")
    assert [item.truth for item in read(TEXTS, "a.parquet")] == [{"good"}, {"bad"}, None]
    several = Inputs("text", ["1", "2"], several=True)
    write_columns(Path("a.jsonl"), {"text": "ab", "label": [[1, 0, 1], [0, 1]]})
    assert [item.truth for item in read(several, "a.jsonl")] == [{"2"}, None]


def test_a_folder_is_read_with_all_folders_in_it(caplog):
    truths = {"0.png": None, "cat/10.png": {"cat"}, "cat/2.png": {"cat"}, "dog/deep/1.PNG": {"dog"}}
    for name in (*truths, ".hidden.png", ".git/x.png"):
        picture(f"b/{name}")
    Path("b/notes.txt").write_text("other")
    total, items = IMAGES.read(["b"])
    found = [(item.file, item.truth) for item in items]
    assert found == [(f"b/{name}", truth) for name, truth in truths.items()]
    assert total == 4
    assert "1 file is left out" in caplog.text


def test_links_to_folders_are_left_out_and_links_out_of_the_folder_refused(caplog):
    picture("there/1.png")
    picture("here/1.png")
    Path("here/again").symlink_to(Path("here").resolve())
    assert len(read(IMAGES, "here")) == 1 and "here/again: is a link" in caplog.text
    for target in ("there/1.png", "there"):
        Path("here/2.png").symlink_to(Path(target).resolve())
        with pytest.raises(InputError, match=r"2\.png"):
            read(IMAGES, "here")
        Path("here/2.png").unlink()
    Path("here/2.png").symlink_to(Path("there/1.png").resolve())
    assert len(read(IMAGES, "here/2.png")) == 1  # the user named the link


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"first\n\n{ third\r\nlast", [(1, "first"), (2, ""), (3, "{ third"), (4, "last")]),
        (b'\n{"text": "a"}\n\n{"text": "b"}', [(2, "a"), (4, "b")]),
    ],
)
def test_texts_can_come_from_standard_input(monkeypatch, content, wanted):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    found = read(TEXTS, "-")
    assert [(item.row, item.raw) for item in found] == wanted
    assert all(item.file == "-" for item in found)
