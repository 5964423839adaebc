"""`attittud demo` as a person types it: its output, its progress, an interrupt."""

import json

import pytest

from attittud_lab import demo
from attittud_lab.config.load import load
from tests.helpers.command_line import run
from tests.helpers.demonstration import shorten

QUICK = ["demo", "--seeds", "2", "--steps", "2"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """The demo leaves a report where one works."""
    monkeypatch.chdir(tmp_path)


def test_the_demo_trains_and_prints_its_table(tmp_path, monkeypatch, capsys):
    shorten(monkeypatch)
    path = tmp_path / "result.json"
    code, out, _ = run(*QUICK, "--out", str(path), capsys=capsys)
    assert code == 0
    saved = json.loads(path.read_text())
    for row, (what, _) in demo.ROWS.items():
        assert row in out and what in out
    assert "--seeds" in saved["decision"]["text"]
    assert saved["seeds"] == [0, 1] and all(
        len(row["values"]) == 2 for row in saved["tables"][0]["rows"]
    )
    tables = [{row["label"]: row["values"] for row in table["rows"]} for table in saved["tables"]]
    assert all(table["primary_only"] == tables[0]["primary_only"] for table in tables)
    page = (tmp_path / "runs/demo/report.html").read_text()
    assert all(row in page for row in demo.ROWS) and all(
        quality in page for quality in demo.QUALITIES
    )
    assert json.loads((tmp_path / "runs/demo/comparison.json").read_text()) == saved
    assert load(tmp_path / "runs/demo/config.yaml") == load(demo.CONFIG)
