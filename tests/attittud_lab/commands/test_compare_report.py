"""`attittud report` as a person types it."""

from pathlib import Path
from typing import Any

import pytest

from attittud_lab import cli
from tests.helpers.reports import comparison, run_dir

__all__ = ["comparison", "run_dir"]  # fixtures


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, "neither a finished comparison"),
        (lambda folder: (folder / "comparison.json").write_text("{"), "cannot be read"),
        (
            lambda folder: (folder / "comparison.json").write_text('{"version": 1}'),
            "were not written by this version",
        ),
        (
            lambda folder: (folder / "run.json").write_text(
                '{"version": 1, "config": {"seed": 0, "strategy": {"name": "flip"}, "training": {"metric": "auto"}}}'
            ),
            "metrics.jsonl: cannot be read",
        ),
    ],
)
def test_bad_folder_is_one_paragraph_and_code_2(
    prepare: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as stopped:
        cli.main(["report", str(tmp_path)])
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and message in err and err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_report_prints_the_path_of_the_page(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["report", str(run_dir), "--output", str(tmp_path / "page")])
    assert not stopped.value.code
    assert capsys.readouterr().out.strip() == str(tmp_path / "page/report.html")
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"report.html", "report.json"}
