"""model.json: its version, what it is derived from in older folders, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.errors import InputError
from attittud_lab.runs.model import NAME, VERSION, Member, ModelFile, cost, read_model
from tests.helpers.predictions import old_run

ABOUT = ModelFile(kind="image", shape=[1, 8, 8], classes=["1", "4", "7"], several=False, temperature=1.5)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return old_run("several", tmp_path)


def test_model_json_is_read_back_as_written(run: Path) -> None:
    members = [Member(weights="a.safetensors", share=0.25), Member(weights="b.safetensors", share=0.75)]
    about = replace(ABOUT, members=members, calibrated_on=30, bytes=2_500_000, seconds=0.004)
    about.write(run)
    found, config = read_model(run)
    assert found == about and config.model.name == "mlp"
    assert cost(run) == "2.5 MB, 4 ms for a prediction"


def test_a_folder_of_an_older_version_is_read(run: Path, tmp_path: Path) -> None:
    assert read_model(run)[0] == replace(ABOUT, temperature=None)
    assert cost(run) == ""
    found = read_model(old_run("findings", tmp_path))[0]
    assert found.several and found.classes == ["Edema", "Fracture"]
    assert read_model(old_run("texts", tmp_path))[0].kind == "text"


def test_a_newer_format_is_refused_with_the_cure(run: Path) -> None:
    ABOUT.write(run)
    values = json.loads((run / NAME).read_text())
    (run / NAME).write_text(json.dumps({"version": VERSION + 1, "all": "else may be different"}))
    with pytest.raises(
        InputError, match=r"has format 2, and this version of attittud reads up to 1; install a newer version"
    ):
        read_model(run)
    (run / NAME).write_text(json.dumps(values))
    assert read_model(run)[0] == ABOUT


@pytest.mark.parametrize(
    "wrong",
    [
        {"members": [{"weights": "../weights.safetensors", "share": 1.0}]},
        {"members": [{"weights": "/etc/passwd", "share": 1.0}]},
        {"members": [{"weights": "..", "share": 1.0}]},
        {"members": [{"weights": "weights.safetensors", "share": -1.0}]},
        {"members": []},
        {"network": "../../network"},
        {"temperature": 0.0},
        {"temperature": "hot"},
        {"shape": [8, 8]},
        {"shape": [1, 8, 0]},
        {"classes": []},
        {"kind": "sound"},
        {"version": None},
        {"unknown": 1},
    ],
    ids=str,
)
def test_a_file_that_describes_no_model_is_refused(run: Path, wrong: dict[str, Any]) -> None:
    ABOUT.write(run)
    (run / NAME).write_text(json.dumps(json.loads((run / NAME).read_text()) | wrong))
    with pytest.raises(InputError, match="do not describe a model"):
        read_model(run)


def test_folders_without_a_finished_run_are_refused(run: Path) -> None:
    with pytest.raises(InputError, match=r"is not the folder of a run; .*did you mean"):
        read_model(run.parent)
    with pytest.raises(InputError, match="is not the folder of a run"):
        read_model(run / "nowhere")
    (run.parent / "comparison.json").write_text("{}")
    with pytest.raises(InputError, match="is the folder of a comparison, not of a run"):
        read_model(run.parent)
    (run / "config.yaml").rename(run / "elsewhere.yaml")
    with pytest.raises(InputError, match=r"config.yaml: cannot be read"):
        read_model(run)
    (run / "result.json").unlink()
    with pytest.raises(InputError, match="not finished"):
        read_model(run)
