"""`attittud report` as a person types it."""

from pathlib import Path

import pytest

from attittud_lab import cli
from tests.helpers.reports import comparison, run_dir

__all__ = ["comparison", "run_dir"]  # fixtures


def test_report_prints_the_path_of_the_page(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["report", str(run_dir), "--output", str(tmp_path / "page")])
    assert not stopped.value.code
    assert capsys.readouterr().out.strip() == str(tmp_path / "page/report.html")
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"report.html", "report.json"}
