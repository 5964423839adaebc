"""model.json: its version, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.errors import InputError
from attittud_lab.runs.model import NAME, VERSION, Member, ModelFile, cost, read_model
from tests.helpers.predictions import digits_run

ABOUT = ModelFile(
    kind="image", shape=[1, 8, 8], classes=["1", "4", "7"], several=False, temperature=1.5
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_run(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "several"))


def test_model_json_is_read_back_as_written(run: Path) -> None:
    names = [
        "a.safetensors",
        "b.safetensors",
        "b.json",
        "features-tfidf.json",
        "features-tfidf.safetensors",
    ]
    for name in names:
        (run / name).write_text(name)
    simple = Member(
        kind="simple", weights="b.safetensors", share=0.75, about="b.json", features="tfidf"
    )
    members = [Member(kind="network", weights="a.safetensors", share=0.25), simple]
    about = replace(
        ABOUT, members=members, calibrated_on=30, bytes=2_500_000, seconds=0.004
    ).sealed(run)
    assert list(about.sha256) == [*names, "config.yaml"]
    about.write(run)
    stored, config = read_model(run)
    assert stored == about
    assert config.model.name == "mlp"
    assert cost(run) == "2.5 MB, 4 ms for a prediction"


@pytest.mark.parametrize("version", [VERSION + 1, None])
def test_another_format_is_refused(run: Path, version: object) -> None:
    (run / NAME).write_text(json.dumps(json.loads((run / NAME).read_text()) | {"version": version}))
    # A setting that is gone would say less.
    (run / "config.yaml").write_text("gone: 1\n")
    with pytest.raises(InputError, match=r"model\.json: has .*format version.* train again"):
        read_model(run)


def test_a_folder_without_the_file_is_refused(run: Path) -> None:
    (run / NAME).unlink()
    with pytest.raises(InputError, match=r"model\.json"):
        read_model(run)
    assert cost(run) == ""


def test_a_run_below_the_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "job" / "flip" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    with pytest.raises(InputError, match=str(folder)):
        read_model(tmp_path)


def test_a_file_that_training_did_not_write_is_refused(run: Path) -> None:
    for name in ("weights.safetensors", "config.yaml"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[:-1] + b" ")
        with pytest.raises(InputError, match=name):
            read_model(run)
        (run / name).write_bytes(content)
    read_model(run)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ["7", "4", "1"]},
        {"temperature": 2.0},
        {"several": True},
        {"sha256": {}},
        {"checksum": ""},
        {"unknown": 1},
        {"members": [{"kind": "network", "weights": "../weights.safetensors", "share": 1.0}]},
    ],
    ids=str,
)
def test_entries_that_training_did_not_write_are_refused(run: Path, change: dict[str, Any]) -> None:
    about = json.loads((run / NAME).read_text())
    assert about != about | change
    (run / NAME).write_text(json.dumps(about | change))
    with pytest.raises(InputError, match=NAME):
        read_model(run)


def test_the_description_of_a_network_cannot_be_changed(run: Path) -> None:
    (run / "network").mkdir()
    (run / "network" / "tokenizer.json").write_text("{}")
    about = json.loads((run / NAME).read_text()) | {"network": "network"}
    ModelFile(**about).sealed(run).write(run)
    read_model(run)
    (run / "network" / "added_tokens.json").write_text("{}")
    with pytest.raises(InputError, match=r"added_tokens\.json"):
        read_model(run)
    (run / "network" / "added_tokens.json").unlink()
    (run / "network" / "tokenizer.json").write_text("{ }")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        read_model(run)
