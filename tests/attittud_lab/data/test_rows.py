"""Files of rows: what is whole is read as another reader reads it; what is damaged is refused."""

import pytest

from attittud_lab.errors import InputError
from attittud_lab.predict.inputs import Inputs
from tests.helpers.data_files import inputs, read_path

TEXTS = {
    "a.csv": "text,label\nf\u00fcr,good\n",
    "a.tsv": "text\tlabel\nf\u00fcr\tgood\n",
    "a.jsonl": '{"text": "f\u00fcr", "label": "good"}\n',
}


@pytest.mark.parametrize("name", TEXTS)
def test_only_utf_8_and_marked_unicode_text_are_read(tmp_path, name):
    """In training and in prediction alike."""
    path = tmp_path / name
    reader = Inputs("text", ["good"], several=False)
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
        path.write_bytes(TEXTS[name].encode(encoding))
        (item,) = reader.read([str(path)])[1]
        assert inputs(read_path(path)) == [item.raw] == ["f\u00fcr"]
    for encoding in ("latin-1", "utf-16-le", "utf-32-be"):
        path.write_bytes(TEXTS[name].encode(encoding))
        for read in (read_path, lambda path: list(reader.read([str(path)])[1])):
            with pytest.raises(InputError, match=f"{name}: is not text in UTF-8"):
                read(path)


HOSTILE = [r'"\ud800"', r'{"a": "\uDFFF"}', "[" * 101 + "]" * 101]
HOSTILE += ["[" * 100_000 + "]" * 100_000, '{"a":' * 50_000]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:9])
def test_half_characters_and_deep_nesting_are_refused(tmp_path, text):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "a", "label": "b"}}\n{{"text": {text}, "label": "b"}}\n')
    with pytest.raises(InputError, match=r"a.jsonl: line 2"):
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
def test_tables_whose_rows_would_be_merged_or_lost_are_refused(tmp_path, content, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        read_path(tmp_path / "a.csv")
