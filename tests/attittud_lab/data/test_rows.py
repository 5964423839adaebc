"""Files of rows: what is whole is read as another reader reads it; what is damaged is refused in
words.
"""

from pathlib import Path

import pytest

from attittud_lab.errors import InputError
from tests.helpers.data_files import inputs, read_path


def test_a_repeated_column_is_refused(tmp_path: Path) -> None:
    """Refused where it is asked for; other columns may have what names they like."""
    path = tmp_path / "a.csv"
    columns = {"text": ["a", "b"], "label": ["x", "y"], "more": ["1", "2"], "": ["", ""]}

    def write(*names: str) -> None:
        rows = zip(*(columns[name] for name in names), strict=True)
        path.write_text("\n".join(",".join(row) for row in [names, *rows]) + "\n")

    for twice in ("text", "label", "more"):
        write("text", "label", "more", twice)
        with pytest.raises(InputError, match=f"has the column '{twice}' more than once"):
            read_path(path, where={"more": "1"})
    write("text", "label", "", "")
    assert inputs(read_path(path)) == ["a", "b"]


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
