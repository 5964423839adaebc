"""Files of rows: what is whole is read as another reader reads it; what is damaged is refused in
words.
"""

from pathlib import Path

import pytest

from attittud_lab.errors import InputError
from tests.helpers.data_files import read_path


@pytest.mark.parametrize("nested", ["[" * 100_000 + "]" * 100_000, '{"a":' * 50_000])
def test_deep_nesting_does_not_crash(tmp_path: Path, nested: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "a", "label": "b"}}\n{{"text": {nested}}}\n')
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
