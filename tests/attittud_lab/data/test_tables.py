"""Tables: what is written comes out again, row by row; what is damaged is refused in words."""

import csv
import io
import json
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attittud_lab.config.schema import PrimaryConfig
from attittud_lab.data import tables
from attittud_lab.data.source import open_listing, open_source
from attittud_lab.data.tables import read_file
from attittud_lab.errors import InputError
from tests.helpers.data_files import CASES, damaged, inputs, named, read_path
from tests.helpers.data_sets import encoded, read_configuration, write_texts

LABELS = ["NA", "None", "01", "no", "1.0", "null", "nan", "True", "007", "1e5", "2020-01-01"]
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


# ------------------------------------------------------------------------------------------------ what is written comes out


def write_csv(path: Path, texts: Sequence[str], labels: Sequence[str]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([("text", "label"), *zip(texts, labels, strict=True)])


def write_jsonl(path: Path, texts: Sequence[str], labels: Sequence[str]) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_parquet(path: Path, texts: Sequence[str], labels: Sequence[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": texts, "label": labels}), path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("rows.csv", write_csv),
        ("rows.tsv", write_csv),
        ("rows.jsonl", write_jsonl),
        ("rows.parquet", write_parquet),
        ("data/train-00000-of-00001.parquet", write_parquet),
    ],
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
    assert inputs(listing) == texts and named(listing) == LABELS and listing.classes == sorted(LABELS)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
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
            "".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in zip(texts, numbers, strict=True))
        )
    listing = read_path(path)
    assert listing.classes == ["0", "2", "10", "99999"] and named(listing) == ["10", "2", None, "99999", "0", "2"]


def test_whole_numbers_stored_as_floats_are_classes(tmp_path: Path) -> None:
    """pandas makes floats of whole numbers if some of them are missing."""
    for kind in (pa.float32(), pa.float64()):
        labels = pa.array([10.0, None, 2.0, float("nan"), 2.0], kind)
        pq.write_table(pa.table({"text": list("abcde"), "label": labels}), tmp_path / "a.parquet")
        listing = read_path(tmp_path / "a.parquet")
        assert listing.classes == ["2", "10"] and named(listing) == ["10", None, "2", None, "2"]
    pq.write_table(pa.table({"text": ["a", "b"], "label": [0.5, 1.0]}), tmp_path / "a.parquet")
    with pytest.raises(
        InputError, match=r"holds double; a label is a whole number, .*; convert the column to one of them"
    ):
        read_path(tmp_path / "a.parquet")


def test_numbers_too_large_for_integers_are_read_as_texts_or_refused(tmp_path: Path) -> None:
    """Python gives up on whole numbers of more than 4,300 digits."""
    huge = "9" * 5000
    write_csv(tmp_path / "a.csv", ["x", "y", "z"], [huge, "1", "1"])
    assert named(read_path(tmp_path / "a.csv")) == [huge, "1", "1"]
    (tmp_path / "a.jsonl").write_text(f'{{"text": "x", "label": {huge}}}\n')
    with pytest.raises(InputError, match="column 'label' holds double; a label is a whole number"):
        read_path(tmp_path / "a.jsonl")
    pq.write_table(
        pa.table({"text": ["x", "y"], "label": pa.array([2**64 - 1, 0], pa.uint64())}), tmp_path / "a.parquet"
    )
    assert named(read_path(tmp_path / "a.parquet")) == [str(2**64 - 1), "0"]


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
    with pytest.raises(InputError, match=r"no row has '001' in column 'code' .* its values are 01, 1"):
        read_path(path, where={"code": "001"})


def test_rows_are_named_as_in_the_file(tmp_path: Path) -> None:
    """Counted from 1, as predictions are, and before `where` leaves some out."""
    path = tmp_path / "a.csv"
    path.write_text("text,label,site\n" + "".join(f"text {n},{'xy'[n % 2]},{'uvw'[n % 3]}\n" for n in range(9)))
    listing = read_path(path, where={"site": "v", "label": "y"})
    assert inputs(listing) == ["text 1", "text 7"]
    assert listing.named(np.arange(2)) == [f"{path}, row 2", f"{path}, row 8"]
    for name in ("train", "more"):
        (tmp_path / "splits").mkdir(exist_ok=True)
        write_csv(tmp_path / "splits" / f"{name}.csv", [f"{name} a", f"{name} b"], ["x", "y"])
    two = read_path(tmp_path / "splits", "train+more")
    assert two.named(np.array([3, 0])) == [f"{tmp_path}/splits (more), row 2", f"{tmp_path}/splits (train), row 1"]


def groups_of(path: Path) -> list[str]:
    return open_listing(PrimaryConfig(path=str(path), group="who"), open_source(str(path)), None).groups or []


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_without_a_group_are_not_one_group(suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, groups = tmp_path / f"a.{suffix}", ["p1", None, "p1", "", " ", "p2"]
    columns = {"text": list("abcdef"), "label": list("xyxyxy"), "who": groups}
    if suffix == "csv":
        rows = zip(*([cell or "" for cell in column] for column in columns.values()), strict=True)
        path.write_text("\n".join(",".join(row) for row in [tuple(columns), *rows]))
    else:
        pq.write_table(pa.table(columns), path)
    found = groups_of(path)
    assert [found[row] for row in (0, 2, 5)] == ["p1", "p1", "p2"] and len(set(found)) == 5
    assert "3 of 6 rows have no group (column 'who'); each counts as a group of its own" in caplog.text
    pq.write_table(pa.table(columns | {"who": [7.0, math.nan, 8.5, None, 7.0, -1.0]}), tmp_path / "b.parquet")
    numbers = groups_of(tmp_path / "b.parquet")
    assert [numbers[row] for row in (0, 2, 4, 5)] == ["7", "8.5", "7", "-1"] and len(set(numbers)) == 5
    assert not {*found} & {*numbers}


# ------------------------------------------------------------------------------------------------ two label columns


def two_columns(path: Path, metadata: dict[str, Any]) -> Path:
    """As CIFAR-100: eight fine classes, of which each two belong to one coarse class."""
    table = pa.table(
        {
            "text": [f"text {n}" for n in range(16)],
            "fine_label": [n % 8 for n in range(16)],
            "coarse_label": [n % 8 // 2 for n in range(16)],
        }
    )
    pq.write_table(table.replace_schema_metadata({key: json.dumps(value) for key, value in metadata.items()}), path)
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
        {"class_names": FINE, "coarse_label_names": COARSE},
        {"fine_label_names": FINE, "coarse_label_names": COARSE},
    ],
    ids=["hub", "mapping", "list and key", "keys"],
)
def test_each_label_column_has_its_own_names(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = two_columns(tmp_path / "a.parquet", metadata)
    for column, names in {None: FINE, "fine_label": FINE, "coarse_label": COARSE}.items():
        listing = read_path(path, label=column)
        assert listing.classes == names and set(named(listing)) == set(names)
        few = read_path(path, label=column, where={"fine_label": "3"})  # without examples of most classes
        assert few.classes == names and few.count == 2


def test_a_list_of_names_applies_only_to_the_usual_label_column(tmp_path: Path) -> None:
    path = two_columns(tmp_path / "a.parquet", {"class_names": FINE})
    assert read_path(path).classes == FINE and read_path(path, label="coarse_label").classes == ["0", "1", "2", "3"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data sets are not here")
def test_both_label_columns_of_cifar_100_are_read() -> None:
    fine, coarse = (read_path(SHARED / "cifar100", "test", label=label) for label in ("fine_label", "coarse_label"))
    assert len(fine.classes) == 100 and len(coarse.classes) == 20 and coarse.classes[1] == "fish"
    pairs = {(a, b) for a, b in zip(named(fine), named(coarse), strict=True)}
    assert len(pairs) == 100 and ("aquarium_fish", "fish") in pairs


# ------------------------------------------------------------------------------------------------ encodings and damage


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_byte_order_marks_are_understood(tmp_path: Path, suffix: str, encoding: str) -> None:
    path = tmp_path / f"a.{suffix}"
    (write_jsonl if suffix == "jsonl" else write_csv)(path, ["sch\u00f6n", "\U0001f600, x"], ["gut", "\u4e0d"])
    path.write_bytes(path.read_bytes().decode().encode(encoding))
    listing = read_path(path)
    assert inputs(listing) == ["sch\u00f6n", "\U0001f600, x"] and named(listing) == ["gut", "\u4e0d"]
    if encoding == "utf-16":
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(InputError, match=r"cannot be read as .* truncated data"):
            read_path(path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_repeated_column_is_refused(tmp_path: Path, suffix: str) -> None:
    """Refused where it is asked for; other columns may have what names they like."""
    path = tmp_path / f"a.{suffix}"
    columns = {"text": ["a", "b"], "label": ["x", "y"], "more": ["1", "2"], "": ["", ""]}

    def write(*names: str) -> None:
        arrays = [pa.array(columns[name]) for name in names]
        if suffix == "parquet":
            pq.write_table(pa.Table.from_arrays(arrays, names=list(names)), path)
        else:
            rows = zip(*(columns[name] for name in names), strict=True)
            path.write_text("\n".join(",".join(row) for row in [names, *rows]) + "\n")

    for twice in ("text", "label", "more"):
        write("text", "label", "more", twice)
        with pytest.raises(InputError, match=f"has the column '{twice}' more than once"):
            read_path(path, where={"more": "1"})
    write("text", "label", "", "")
    assert inputs(read_path(path)) == ["a", "b"]


@pytest.mark.parametrize("text", ['{"text": %s}\n', "[%s]\n"])
@pytest.mark.parametrize("nested", ["[" * 100_000 + "]" * 100_000, "[\n" * 100_000 + "]" * 100_000, '{"a":' * 50_000])
def test_deep_nesting_does_not_crash(tmp_path: Path, text: str, nested: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": "b"}\n' + text % nested)
    with pytest.raises(InputError, match=r"line \d+ has more than 100 nested lists and objects"):
        read_path(path)


def test_csv_is_not_read_by_a_thread_that_may_outlive_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow's streaming reader aborted refused commands now and then (exit code 134)."""
    monkeypatch.setattr(pa.csv, "open_csv", None)
    write_csv(tmp_path / "a.csv", ["a", "b"], ["x", "y"])
    assert len(read_path(tmp_path / "a.csv").labels) == 2


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbftext,label\n01,x\n", b'\n\n"te\nxt",label\n01,x\n', b'text,"la""bel"\n01,x\n'], ids=str
)
def test_every_cell_of_a_csv_is_text_whatever_its_header(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    table = tables._text_table(path, ".csv")
    assert {str(kind) for kind in table.schema.types} == {"binary"} and table.column(0)[0].as_py() == b"01"


def test_a_line_of_quotes_is_read_quickly(tmp_path: Path) -> None:
    path, begun = tmp_path / "a.jsonl", time.process_time()
    path.write_text('{"text": "' + '\\"' * 300_000)
    with pytest.raises(InputError, match="cannot be read as jsonl"):
        read_path(path)
    (tmp_path / "a.csv").write_text("text,label\n" + '"' * 600_001)
    with pytest.raises(InputError, match="a quoted cell is not closed"):
        read_path(tmp_path / "a.csv")
    assert time.process_time() - begun < 10


def test_brackets_in_texts_do_not_count_as_nesting(tmp_path: Path) -> None:
    texts = ["[" * 500, "{" * 500 + '"', "\\" + "]" * 3, '"' * 5 + "[[[" * 100]
    write_jsonl(tmp_path / "a.jsonl", texts, ["x", "y", "x", "y"])
    assert inputs(read_path(tmp_path / "a.jsonl")) == texts


def test_brackets_hidden_in_strings_do_not_hide_nesting(tmp_path: Path) -> None:
    line = '{"s": "' + "}" * 60 + '", "x": ' + '{"s": 1, "x": ' * 59 + "{}\n"
    (tmp_path / "a.jsonl").write_text(line * 200)
    with pytest.raises(InputError, match="nested lists and objects"):
        read_path(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text,label\nfoo,"dog\nbar,cat\n', r"a quoted cell is not closed, .* in or before line 2"),
        ('text\n"foo\nbar\n', "a quoted cell is not closed"),
        ('text,label\n"a ""b""\nc,x\n"d",y\n', "continues after its closing quote"),
        ('text,label\n"say \\"hi\\"",x\n', "write quotes inside a quoted cell twice"),
        ("text,label\na,b\nc\n", "Row #3: Expected 2 columns, got 1"),
        ("text,label\na,b,c\n", "Expected 2 columns, got 3"),
        ("", "Empty CSV file"),
    ],
)
def test_tables_whose_rows_would_be_merged_or_lost_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        read_path(tmp_path / "a.csv")


def test_quotes_inside_of_an_unquoted_cell_are_ordinary_characters(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n5" pipe,x\nsay "hi",y\n"6"" pipe",x\n')
    assert inputs(read_path(tmp_path / "a.csv")) == ['5" pipe', 'say "hi"', '6" pipe']


def test_rows_longer_than_a_block_are_read(tmp_path: Path) -> None:
    long = "word " * 500_000
    for suffix, write in {"csv": write_csv, "jsonl": write_jsonl}.items():
        write(tmp_path / f"a.{suffix}", [long, "short"], ["x", "y"])
        assert inputs(read_path(tmp_path / f"a.{suffix}")) == [long, "short"]


def test_messages_count_records_from_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{"text": }\n')
    with pytest.raises(InputError, match=r"cannot be read as jsonl \(.* in record 3\)"):
        read_path(tmp_path / "a.jsonl")


def test_folders_that_look_like_partitions_add_no_column(tmp_path: Path) -> None:
    folder = tmp_path / "label=3"
    folder.mkdir()
    pq.write_table(pa.table({"text": ["a", "b"]}), folder / "a.parquet")
    assert read_file(folder / "a.parquet").column_names == ["text"]


def test_suffixes_in_capitals_are_accepted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "label": [0, 1]}), tmp_path / "A.PARQUET")
    assert inputs(read_path(tmp_path / "A.PARQUET")) == ["a", "b"]


# ------------------------------------------------------------------------------------------------ fuzzing

WORDS = [
    "a",
    "",
    " ",
    '"',
    "'",
    ",",
    "\t",
    "\n",
    "\r\n",
    "\\",
    "{",
    "]",
    "NA",
    "0",
    "1.0",
    "\u00e4",
    "\u4e0d",
    "\U0001f600",
    "\x00",
]


def odd(random_: random.Random, most: int = 6) -> str:
    return "".join(random_.choice(WORDS) for _ in range(random_.randrange(most)))


def oracle(path: Path) -> list[tuple[Any, Any]]:
    """Texts and labels by other means than ours; raises where the file makes no sense."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        rows = pq.ParquetFile(io.BytesIO(content)).read().to_pylist()
        return [(row["text"], row.get("label")) for row in rows]
    marks = {b"\xff\xfe\x00\x00": "utf-32", b"\x00\x00\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
    encoding = next((name for mark, name in marks.items() if content.startswith(mark)), "utf-8-sig")
    text = content.decode(encoding)
    if path.suffix == ".jsonl":
        decoder, found, place = json.JSONDecoder(), [], 0
        while text[place:].strip(" \t\r\n"):
            place += len(text[place:]) - len(text[place:].lstrip(" \t\r\n"))
            row, place = decoder.raw_decode(text, place)
            found.append((row.get("text"), row.get("label")))
        return found
    delimiter = "\t" if path.suffix == ".tsv" else ","
    lines = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if row]
    header, rows = lines[0], lines[1:]
    if any(len(row) != len(header) for row in rows):
        raise ValueError("rows of different lengths")
    label = header.index("label") if "label" in header else None
    return [(row[header.index("text")], None if label is None else row[label]) for row in rows]


def write_odd(path: Path, random_: random.Random) -> bool:
    """Write a file of odd rows, damaged or not; returns whether it is whole and in an encoding that announces itself."""
    rows = [
        (odd(random_, 9), random_.choice(LABELS) if random_.random() < 0.8 else odd(random_))
        for _ in range(random_.randrange(1, 20))
    ]
    if random_.random() < 0.2:
        rows = [(text, str(random_.choice([0, 1, 7, -1, 12]))) for text, _ in rows]
    whole = True
    if path.suffix == ".parquet":
        kind = random_.choice([pa.string(), pa.large_string(), pa.string_view()])
        labels = pa.array([label for _, label in rows], kind)
        if kind == pa.string() and random_.random() < 0.3:
            labels = labels.dictionary_encode()
        file = io.BytesIO()
        pq.write_table(pa.table({"text": pa.array([text for text, _ in rows], kind), "label": labels}), file)
        content = file.getvalue()
    else:
        if path.suffix == ".jsonl":
            ascii_ = random_.random() < 0.5
            text = "".join(json.dumps({"text": t, "label": n}, ensure_ascii=ascii_) + "\n" for t, n in rows)
        else:
            out = io.StringIO(newline="")
            ends, quoting = random_.choice(["\n", "\r\n"]), random_.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
            writer = csv.writer(
                out, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator=ends, quoting=quoting
            )
            writer.writerows([("text", "label"), *rows])
            text = out.getvalue()
        encoding = random_.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "utf-16-le", "cp1252"])
        content = text.encode(encoding, "replace")
        whole = encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32")
    if random_.random() < 0.6:
        content, whole = damaged(content, random_), False
    path.write_bytes(content)
    return whole


def test_files_are_read_right_or_refused(tmp_path: Path) -> None:
    """No traceback, no crash, no row that another reader does not find: for whole files, damaged ones, odd ones."""
    refused = 0
    for case in range(CASES):
        random_ = random.Random(case)
        path = tmp_path / f"{case}{random_.choice(['.csv', '.tsv', '.jsonl', '.parquet'])}"
        whole = write_odd(path, random_)
        try:
            listing = read_path(path)
        except InputError as error:
            message = str(error)
            fine = "\n" not in message and len(message) < 1000 and (not whole or "no examples" in message)
            if not fine:
                pytest.fail(f"case {case}: {message}")
            refused += 1
            continue
        try:
            wanted = oracle(path)
        except (ValueError, KeyError, IndexError, AttributeError, csv.Error, pa.ArrowException) as error:
            pytest.fail(f"case {case}: read, though another reader says {error!r}")
        labels = [None] * listing.count if listing.labels is None else named(listing)
        numbers = all(name.isdecimal() for name in listing.classes)
        assert inputs(listing) == [text for text, _ in wanted], f"case {case}"
        assert labels == [meaning(label, numbers) for _, label in wanted], f"case {case}"
        path.unlink()
    assert CASES // 10 < refused < CASES


def meaning(label: Any, numbers: bool) -> str | None:
    """The meaning of a cell of the label column; in a column of whole numbers, blanks around them do not count."""
    if label is None or label == "":
        return None
    text = str(label)
    if numbers and re.fullmatch(r"[ \t]*-?[0-9]+[ \t]*", text):
        return None if "-" in text else text.strip()
    return text


def hub_table(labels: list[int], column: str = "image", names: list[str] | None = None, first: int = 0) -> pa.Table:
    images = [{"bytes": encoded(first + n), "path": f"../../etc/{n}.png"} for n in range(len(labels))]
    table = pa.table({column: images, "label": labels})
    features = {"label": {"names": names, "_type": "ClassLabel"}} if names else {}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


@pytest.mark.parametrize("column", ["image", "img"])
def test_parquet_files_of_the_hub_are_read(tmp_path: Path, column: str) -> None:
    names = ["yes", "no"]
    for shard in range(2):
        table = hub_table([0, 1] * 10, column, names, 20 * shard)
        pq.write_table(table, tmp_path / f"train-0000{shard}-of-00002.parquet")
    pq.write_table(hub_table([1, 0, 1], column, names, 40), tmp_path / "test-00000-of-00001.parquet")
    data = read_configuration(f"data: {{primary: {{path: {tmp_path}, validation: 10}}}}")
    assert data.primary.classes == names and (len(data.primary.examples), len(data.validation), len(data.test)) == (
        30,
        10,
        3,
    )
    assert data.test.targets is not None and data.test.targets.tolist() == [1, 0, 1]


def test_the_layout_of_cifar_100_is_read(tmp_path: Path) -> None:
    table = hub_table([0, 1, 2, 3] * 5, "img").drop_columns(["label"])
    table = table.append_column("fine_label", [[0, 1, 2, 3] * 5]).append_column("coarse_label", [[0, 0, 1, 1] * 5])
    features = {
        name: {"names": names} for name, names in {"fine_label": list("abcd"), "coarse_label": list("AB")}.items()
    }
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "x.parquet")
    path = tmp_path / "x.parquet"
    data = read_configuration(
        f"data: {{primary: {{path: {path}, classes: [a, c]}}, auxiliary: {{super: {{path: {path}, label: coarse_label}}}}}}"
    )
    assert data.primary.classes == ["a", "c"] and data.auxiliary["super"].classes == ["A", "B"]
    assert len(data.auxiliary["super"].examples) == 10  # the other ten are primary


def test_tables_may_have_several_labels_per_row(tmp_path: Path) -> None:
    images = [{"bytes": encoded(number, mode="L"), "path": None} for number in range(20)]
    table = pa.table({"image": images, "labels": [[number % 2, 1, int(number % 4 == 0)] for number in range(20)]})
    pq.write_table(table.replace_schema_metadata({"class_names": json.dumps(["x", "y", "z"])}), tmp_path / "a.parquet")
    data = read_configuration(f"data: {{primary: {{path: {tmp_path}/a.parquet, classes: [z, x]}}}}")
    assert data.primary.objective == "multi_label" and data.primary.classes == ["z", "x"]
    assert data.primary.examples.inputs.shape[1:] == (1, 8, 8)
    assert data.primary.examples.targets is not None and data.primary.examples.targets.shape == (12, 2)
    assert data.primary.examples.targets[:, 0].sum() == 3  # of 5, in proportion


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_tables_of_texts_are_read(tmp_path: Path, suffix: str) -> None:
    path = write_texts(tmp_path / f"texts.{suffix}", ["no", "NA"] * 10)
    data = read_configuration(f"data: {{primary: {path}, auxiliary: {{lm: {{path: {path}, objective: masked_lm}}}}}}")
    assert data.kind == "text" and data.primary.classes == ["NA", "no"]
    # Language modelling may use the training texts again, but never the texts of validation and test.
    assert (
        data.auxiliary["lm"].objective == "masked_lm"
        and len(data.auxiliary["lm"].examples) == len(data.primary.examples) == 12
    )


def test_empty_cells_are_no_class_and_categories_of_pandas_are_texts(tmp_path: Path) -> None:
    """An empty cell is not a class; pandas' categories are texts."""
    rows = [f"words of {i},{('no', 'yes')[i % 2]}\n" for i in range(20)]
    (tmp_path / "t.csv").write_text("text,label\n" + "".join([*rows, "nobody has judged this,\n"]))
    labels = pa.array(["no", "yes"] * 10).dictionary_encode()
    pq.write_table(pa.table({"text": [f"words of {i}" for i in range(20)], "label": labels}), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        data = read_configuration(f"data: {{primary: {tmp_path / name}}}\nmodel: text-cnn")
        assert data.primary.classes == ["no", "yes"]
        assert sum(map(len, (data.primary.examples, data.validation, data.test))) == 20


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("column", ["text", "label"])
def test_other_encodings_are_named(tmp_path: Path, suffix: str, column: str) -> None:
    path = tmp_path / f"texts.{suffix}"
    latin = "caf\u00e9".encode("latin-1")
    content = {"text": b"tea %d", "label": b"b"} | {column: latin + b" %d"}
    if suffix == "parquet":
        texts = pa.array([latin] * 20)
        strange = pa.Array.from_buffers(pa.string(), 20, texts.buffers())
        pq.write_table(pa.table({"text": ["tea"] * 20, "label": ["a", "b"] * 10} | {column: strange}), path)
    else:
        line = b'{"text": "%b", "label": "%b"}\n' if suffix == "jsonl" else b"%b,%b\n"
        rows = [line % tuple(value.replace(b"%d", b"%d" % n) for value in content.values()) for n in range(20)]
        path.write_bytes((b"text,label\n" if suffix == "csv" else b"") + b"".join(rows))
    with pytest.raises(InputError, match=f"column '{column}' is not UTF-8 text; save the file in that encoding"):
        read_configuration(f"data: {{primary: {{path: {path}}}}}")
