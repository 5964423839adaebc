"""The benchmark of a refresh on a text encoder, in small."""

import json
from pathlib import Path

import pytest

from benchmarks import encoder


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_benchmark_of_a_text_encoder_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="the extra transformers is not installed")
    out = tmp_path / "encoder.json"
    given = ["--tiny", "--device", "cpu", "--examples", "4", "--length", "16", "--repeats", "3", "--limit", "1"]
    monkeypatch.setattr("sys.argv", ["encoder", *given, "--out", str(out)])
    encoder.main()
    found = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert set(found["refresh"]["eager"]) == set(encoder.ENGINES) and found["made_with"]["quick"] is True
    times = found["seconds"]["eager"]
    assert found["refresh"]["eager"]["loop"] == times["loop, refresh"] - times["loop, step"]
