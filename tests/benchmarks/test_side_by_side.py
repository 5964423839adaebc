"""Two revisions of the library run on one model in one process."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import side_by_side

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.filterwarnings("ignore:.*batching rule.*")
def test_another_revision_runs_beside_this_one(tmp_path, monkeypatch):
    words = ["--before", SOURCE, "--device", "cpu", "--only", "wrn22", "--out", tmp_path]
    monkeypatch.setattr(sys, "argv", ["side_by_side", *map(str, words)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    side_by_side.main()
    point = json.loads((tmp_path / "side_by_side.json").read_text())["models"]["wrn22"]
    assert {"now", "before", "multitask"} <= point["seconds"].keys()
    assert point["now_over"]["before"]["n"] == len(point["rounds"]) >= 2
    other = sys.modules[side_by_side.RENAMED]
    assert other.Guide is not sys.modules["attittud"].Guide
