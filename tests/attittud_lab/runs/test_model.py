"""model.json: its version, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attittud_lab.errors import InputError
from attittud_lab.runs.model import (
    NAME,
    VERSION,
    Member,
    ModelFile,
    cost,
    file_sha256,
    read_model,
    time_words,
)
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


def test_model_json_is_read_back_as_written(run):
    names = ["a.safetensors", "b.safetensors", "b.json"]
    names += ["features-tfidf.json", "features-tfidf.safetensors"]
    for name in names:
        (run / name).write_text(name)
    files = {"weights": "b.safetensors", "about": "b.json", "features": "tfidf"}
    simple = Member(kind="simple", share=0.75, **files)
    members = [Member(kind="network", weights="a.safetensors", share=0.25), simple]
    about = replace(ABOUT, members=members, calibrated_on=30, bytes=2_500_000, seconds=0.004)
    about = about.sealed(run)
    parts = ["data.json", "digests in data.json"]
    assert list(about.sha256) == [*names, "config.yaml", *parts]
    about.write(run)
    stored, config = read_model(run)
    assert stored == about
    assert config.model.name == "mlp"
    assert cost(run) == "2.5 MB, 4 ms for a prediction"


@pytest.mark.parametrize("version", [VERSION + 1, None])
def test_another_format_is_refused(run, version):
    (run / NAME).write_text(json.dumps(json.loads((run / NAME).read_text()) | {"version": version}))
    # A setting that is gone would say less.
    (run / "config.yaml").write_text("gone: 1\n")
    with pytest.raises(InputError, match=r"model\.json: has .*format version.* train again"):
        read_model(run)


def test_a_folder_without_the_file_is_refused(run):
    (run / NAME).unlink()
    with pytest.raises(InputError, match=r"model\.json"):
        read_model(run)
    assert cost(run) == ""


def test_a_run_below_the_folder_is_named(tmp_path):
    folder = tmp_path / "job" / "flip" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    with pytest.raises(InputError, match=str(folder)):
        read_model(tmp_path)


def test_a_file_that_training_did_not_write_is_refused(run):
    for name in ("weights.safetensors", "config.yaml"):
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[:-1] + b" ")
        with pytest.raises(InputError, match=name):
            read_model(run)
        (run / name).write_bytes(content)
    read_model(run)


def test_another_data_json_is_refused(run):
    """Only the digests may be removed, or the whole file."""
    path = run / "data.json"
    whole = path.read_text()
    record = json.loads(whole)
    other = {"primary": {**record["primary"], "label": "other"}}
    digests = {"digests": "AAAAAAAAAAA="}
    for changed in (record | digests, record | other, record | {"more": 1}, [record]):
        path.write_text(json.dumps(changed))
        with pytest.raises(InputError, match=r"data\.json"):
            read_model(run)
    del record["digests"]
    path.write_text(json.dumps(record))
    read_model(run)
    path.unlink()
    read_model(run)


def test_runs_of_version_0_2_0_are_still_read(run):
    """Images and texts had no checksum of data.json, tables one of the whole file."""
    about, _ = read_model(run)
    sums = {name: value for name, value in about.sha256.items() if "data.json" not in name}
    for kind, earlier in (
        ("image", sums),
        ("table", sums | {"data.json": file_sha256(run / "data.json")}),
    ):
        older = replace(about, kind=kind, sha256=earlier)
        replace(older, checksum=older.own_checksum()).write(run)
        read_model(run)
    with (run / "data.json").open("a") as file:
        file.write(" ")
    with pytest.raises(InputError, match=r"data\.json"):
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
def test_entries_that_training_did_not_write_are_refused(run, change):
    about = json.loads((run / NAME).read_text())
    assert about != about | change
    (run / NAME).write_text(json.dumps(about | change))
    with pytest.raises(InputError, match=NAME):
        read_model(run)


def test_the_description_of_a_network_cannot_be_changed(run):
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


@pytest.mark.parametrize(("seconds", "text"), [(0.00012, "0.12 ms"), (0.123, "123 ms")])
def test_the_time_of_a_prediction_has_no_exponent(seconds, text):
    assert time_words(seconds) == text
