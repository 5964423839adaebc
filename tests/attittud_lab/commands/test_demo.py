"""`attittud demo` as a person types it: its output and its page."""

import json

from attittud_lab import demo
from attittud_lab.config.load import load
from attittud_lab.placing.job import in_this_process
from tests.helpers.commands import run


def test_the_demo_trains_and_prints_its_table(tmp_path, monkeypatch, capsys):
    rows = {row: demo.ROWS[row] for row in ("primary_only", "multitask", "flip")}
    monkeypatch.setattr(demo, "ROWS", rows)
    monkeypatch.setattr(demo, "in_processes", lambda _: in_this_process())
    path = tmp_path / "result.json"
    quick = ["--seeds", "2", "--steps", "2"]
    code, out, _ = run("demo", *quick, "--out", path, capsys=capsys)
    assert code == 0
    saved = json.loads(path.read_text())
    for row, (what, _) in demo.ROWS.items():
        assert row in out and what in out
    assert "--seeds" in saved["decision"]["text"]
    assert saved["seeds"] == [0, 1]
    assert all(len(row["values"]) == 2 for row in saved["tables"][0]["rows"])
    tables = [{row["label"]: row["values"] for row in table["rows"]} for table in saved["tables"]]
    assert all(table["primary_only"] == tables[0]["primary_only"] for table in tables)
    page = (tmp_path / "runs/demo/report.html").read_text()
    assert all(row in page for row in demo.ROWS)
    assert all(quality in page for quality in demo.QUALITIES)
    assert json.loads((tmp_path / "runs/demo/comparison.json").read_text()) == saved
    assert load(tmp_path / "runs/demo/config.yaml") == load(demo.CONFIG)
