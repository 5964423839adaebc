"""`--open` shows the report in the browser; a machine without a browser is no error."""

import webbrowser
from pathlib import Path

import pytest

from tests.helpers.commands import JOB, call


def broken(_: str) -> bool:
    raise webbrowser.Error("could not locate runnable browser")


@pytest.mark.parametrize("browser", [lambda _: False, broken])
def test_the_report_opens_where_there_is_a_browser(
    browser: object,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    opened = list[str]()
    monkeypatch.setattr(webbrowser, "open", lambda page: opened.append(page) or True)
    page = Path("runs/job/flip/seed-0/report.html")
    assert call("train", "job.yaml", "strategy=flip", "--quiet") == 0
    assert opened == []
    assert call("train", "job.yaml", "strategy=flip", "--quiet", "--open") == 0
    assert call("report", str(page.parent), "--open") == 0
    assert call("report", str(page.parent), "--open", "--output", "my pages") == 0
    assert opened == [
        path.resolve().as_uri() for path in (page, page, Path("my pages/report.html"))
    ]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(webbrowser, "open", browser)
    assert call("report", str(page.parent), "--open") == 0
    assert str(page) in capsys.readouterr().err
    Path("runs/job/flip/seed-0/metrics.jsonl").write_text("damaged\n")
    assert (
        call("train", "job.yaml", "strategy=flip", "--quiet", "--open") == 0
    )  # no report, nothing to open
