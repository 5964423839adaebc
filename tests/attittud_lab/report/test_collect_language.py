"""The page of a language model begins with the decision."""

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra 'transformers'")
pytest.importorskip("accelerate", reason="needs the extra 'transformers'")

from tests.helpers.commands import call
from tests.helpers.language import JOB, make_files
from tests.helpers.trainers import WARNINGS

pytestmark = WARNINGS


def test_train_shows_the_decision_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_files()
    Path("job.yaml").write_text(JOB)
    assert call("train", "job.yaml", "--quiet") == 0
    out = capsys.readouterr().out
    folder = Path("runs/job/a_gem/seed-0")
    decision = json.loads((folder / "learned.json").read_text())["decision"]["text"]
    assert (
        decision in out
        and "\n 50%  loss " in out
        and "\naverages of the weights before" in f"\n{out}"
        and out.endswith(f"{folder}\n")
    )
    page, figures = (folder / "report.html").read_text(), json.loads((folder / "report.json").read_text())
    assert page.index("Decision on one run with one seed") < page.index("<h2>Result</h2>")
    (table,) = figures["tables"]
    assert len(table["rows"]) == 5 and table["columns"][-1] == "forgetting" and figures["metric"] == "forgetting"
    (curve,) = figures["curves"][0]
    assert curve["validation"]["validation/forgetting"][0] == 0 and len(curve["train"]["loss/new"]) == 6
    for command in ("compare", "diagnose"):
        assert call(command, "job.yaml") == 2
        assert f"`attittud {command}` is for classifiers" in capsys.readouterr().err
    assert call("train", "job.yaml", "--workers", "2") == 2
    assert call("predict", str(folder), "new.jsonl") == 2
    assert "AutoModelForCausalLM.from_pretrained" in capsys.readouterr().err
    (folder / "result.json").unlink()
    assert call("report", str(folder)) == 0
    assert json.loads((folder / "report.json").read_text())["subtitle"].startswith("unfinished")
