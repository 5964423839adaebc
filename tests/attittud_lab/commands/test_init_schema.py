"""`attittud schema` prints a JSON schema."""

import json
from pathlib import Path

import pytest

from tests.helpers.commands import JOB, call


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)


def test_schema_prints_a_json_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("schema") == 0
    shown = capsys.readouterr().out
    assert call("schema", "-o", "s.json") == 0
    assert json.loads(shown) == json.loads(Path("s.json").read_text())
