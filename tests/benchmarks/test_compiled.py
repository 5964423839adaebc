"""The benchmark of compiled bodies, in small."""

import json
from pathlib import Path

import pytest

from attittud_lab.models import compiling
from benchmarks import compiled


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler itself
def test_the_benchmark_of_compiled_bodies_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    out = tmp_path / "compiled.json"
    given = [
        "--tiny",
        "--device",
        "cpu",
        "--workloads",
        "images",
        "--repeats",
        "3",
        "--limit",
        "0",
        "model.name=small-cnn",
    ]
    given += ["model.name=mlp", "model.width=8"]
    monkeypatch.setattr("sys.argv", ["compiled", *given, "--out", str(out)])
    compiled.main()
    (found,) = [value for name, value in json.loads(out.read_text()).items() if name != "made_with"]
    times = found["milliseconds_per_step"]
    assert found["usual_to_compiled"] == pytest.approx(times["usual"] / times["compiled"])
    assert json.loads(capsys.readouterr().out) == {"images, multitask": found} and found["finite"]
    began = found["seconds_to_begin"]
    assert began["same process"] < began["compiled"]
