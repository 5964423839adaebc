"""Files of rows: what is whole is read as another reader reads it; what is damaged is refused in
words.
"""

import csv
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attittud_lab.errors import InputError
from tests.helpers.data_files import CASES, damaged, inputs, named, read_path, write_columns

LABELS = ["NA", "None", "01", "no", "1.0", "null", "nan", "True", "007", "1e5", "2020-01-01"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_byte_order_marks_are_understood(tmp_path: Path, suffix: str, encoding: str) -> None:
    path = tmp_path / f"a.{suffix}"
    write_columns(path, {"text": ["sch\u00f6n", "\U0001f600, x"], "label": ["gut", "\u4e0d"]})
    path.write_bytes(path.read_bytes().decode().encode(encoding))
    listing = read_path(path)
    assert inputs(listing) == ["sch\u00f6n", "\U0001f600, x"] and named(listing) == [
        "gut",
        "\u4e0d",
    ]
    if encoding == "utf-16":
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(InputError, match=rf"a\.{suffix}: line \d"):
            read_path(path)


@pytest.mark.parametrize("suffix", ["csv"])
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


@pytest.mark.parametrize("text", ['{"text": %s}\n'])
@pytest.mark.parametrize("nested", ["[" * 100_000 + "]" * 100_000, '{"a":' * 50_000])
def test_deep_nesting_does_not_crash(tmp_path: Path, text: str, nested: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": "b"}\n' + text % nested)
    with pytest.raises(InputError, match=r"a.jsonl: line \d"):
        read_path(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text,label\nfoo,"dog\nbar,cat\n', "line 3"),
        ('text,label\n"a ""b""\nc,x\n"d",y\n', "line 4"),
        ("text,label\na,b\nc\n", "row 2"),
        ("", "a.csv"),
    ],
)
def test_tables_whose_rows_would_be_merged_or_lost_are_refused(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        read_path(tmp_path / "a.csv")


# ------------------------------------------------------------------------------------------ fuzzing

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
    marks = {
        b"\xff\xfe\x00\x00": "utf-32",
        b"\x00\x00\xfe\xff": "utf-32",
        b"\xff\xfe": "utf-16",
        b"\xfe\xff": "utf-16",
    }
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
    lines = [
        row
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        if row
    ]
    header, rows = lines[0], lines[1:]
    if any(len(row) != len(header) for row in rows):
        raise ValueError("rows of different lengths")
    label = header.index("label") if "label" in header else None
    return [(row[header.index("text")], None if label is None else row[label]) for row in rows]


def write_odd(path: Path, random_: random.Random) -> bool:
    """Write a file of odd rows, damaged or not; returns whether it is whole and in an encoding that
    announces itself.
    """
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
        pq.write_table(
            pa.table({"text": pa.array([text for text, _ in rows], kind), "label": labels}), file
        )
        content = file.getvalue()
    else:
        if path.suffix == ".jsonl":
            ascii_ = random_.random() < 0.5
            text = "".join(
                json.dumps({"text": t, "label": n}, ensure_ascii=ascii_) + "\n" for t, n in rows
            )
        else:
            out = io.StringIO(newline="")
            ends, quoting = (
                random_.choice(["\n", "\r\n"]),
                random_.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
            )
            writer = csv.writer(
                out,
                delimiter="\t" if path.suffix == ".tsv" else ",",
                lineterminator=ends,
                quoting=quoting,
            )
            writer.writerows([("text", "label"), *rows])
            text = out.getvalue()
        encoding = random_.choice(
            ["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "utf-16-le", "cp1252"]
        )
        content = text.encode(encoding, "replace")
        whole = encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32")
    if random_.random() < 0.6:
        content, whole = damaged(content, random_), False
    path.write_bytes(content)
    return whole


def test_files_are_read_right_or_refused(tmp_path: Path) -> None:
    """No traceback, no crash, no row that another reader does not find: for whole files, damaged
    ones, odd ones.
    """
    refused = 0
    for case in range(CASES):
        random_ = random.Random(case)
        path = tmp_path / f"{case}{random_.choice(['.csv', '.tsv', '.jsonl', '.parquet'])}"
        whole = write_odd(path, random_)
        try:
            listing = read_path(path)
        except InputError as error:
            message = str(error)
            fine = (
                "\n" not in message
                and len(message) < 1000
                and (not whole or "no examples" in message)
            )
            if not fine:
                pytest.fail(f"case {case}: {message}")
            refused += 1
            continue
        try:
            wanted = oracle(path)
        except (
            ValueError,
            KeyError,
            IndexError,
            AttributeError,
            csv.Error,
            pa.ArrowException,
        ) as error:
            pytest.fail(f"case {case}: read, though another reader says {error!r}")
        labels = [None] * listing.count if listing.labels is None else named(listing)
        assert inputs(listing) == [text or "" for text, _ in wanted], f"case {case}"
        assert labels == [meaning(label) for _, label in wanted], f"case {case}"
        path.unlink()
    assert CASES // 10 < refused < CASES


def meaning(label: Any) -> str | None:
    """The meaning of a cell of the label column: a negative number or a blank is none, and 1.0 is
    1.
    """
    text = "" if label is None else str(label)
    if not text.strip() or re.fullmatch(r"-[1-9][0-9]*(\.0*)?", text.strip()):
        return None
    if re.fullmatch(r"(0|[1-9][0-9]*)\.?0*", text.strip()):
        return text.strip().partition(".")[0]
    return text
