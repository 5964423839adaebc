"""The folder of a run holds everything, and belongs to one configuration."""

import json

import pytest
import torch
from safetensors.torch import save_file

from attittud_lab.config.load import load
from attittud_lab.errors import InputError
from attittud_lab.models.weights import load_weights
from attittud_lab.report.collect import collect
from attittud_lab.runs.folder import VERSION, load_checkpoint, save_checkpoint
from attittud_lab.runs.model import read_model
from attittud_lab.training.train import run
from tests.helpers.interrupted_runs import train_to_end, unfinished
from tests.helpers.runs import job, metrics_of

__all__ = ["job"]  # fixtures


def test_the_run_folder_holds_everything(job, tmp_path):
    result = run(job, 3, "flip", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        ".lock",
        "config.yaml",
        "run.json",
        "data.json",
        "metrics.jsonl",
        "weights.safetensors",
        "model.json",
        "result.json",
    }
    assert load(tmp_path / "config.yaml").seed == 3
    assert load(tmp_path / "config.yaml").strategy.name == "flip"
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["torch"] in torch.__version__ and about["cores"] and about["device"] == "cpu"
    lines = [line for line in metrics_of(tmp_path) if line["phase"] == "guided"]
    logged = [line for line in lines if "loss/primary" in line]
    assert [line["step"] for line in logged] == [4, 8, 12]
    parts = {f"attittud/{part}" for part in ("neutral", "helpful", "harmful")}
    assert parts | {"loss/auxiliary/more"} <= logged[0].keys()
    steps = [line["step"] for line in lines if "validation/accuracy" in line]
    assert steps == [4, 8, 12]
    assert load_weights(tmp_path / "weights.safetensors")["heads.primary.weight"].shape == (10, 16)
    data = json.loads((tmp_path / "data.json").read_text())
    rows = [set(data["primary"][part]["rows"]) for part in ("train", "validation", "test")]
    assert [len(part) for part in rows] == [60, 60, 200]
    assert not rows[0] & rows[1]
    assert not rows[2] & (rows[0] | rows[1])
    # No auxiliary example is a primary one under another name.
    assert not set(data["auxiliary"]["more"]["rows"]) & set().union(*rows)
    again = run(job, 3, "flip", tmp_path)
    assert again.skipped and again == result


def test_a_folder_of_another_configuration_is_refused(job, tmp_path):
    run(job, 0, "primary_only", tmp_path)
    with pytest.raises(InputError, match=r"another configuration \(seed: 0 there, 1 here"):
        run(job, 1, "primary_only", tmp_path)
    # Another network's tokenizer would be read together with the new one's.
    (tmp_path / "network").mkdir()
    (tmp_path / "network" / "added_tokens.json").write_text("{}")
    assert run(job, 1, "primary_only", tmp_path, fresh=True).seed == 1
    assert not (tmp_path / "network" / "added_tokens.json").exists()


@pytest.mark.parametrize("version", [VERSION + 1, None])
def test_a_run_in_another_format_is_refused(version, job, tmp_path):
    run(job, 0, "primary_only", tmp_path)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": version}))
    with pytest.raises(InputError, match=r"run\.json: has .*format version.* train again"):
        run(job, 0, "primary_only", tmp_path)
    with pytest.raises(InputError, match=r"run\.json: has .*format version"):
        collect(tmp_path, 10)
    assert not run(job, 0, "primary_only", tmp_path, fresh=True).skipped


def test_a_run_that_continues_writes_its_configuration_again(tmp_path):
    unfinished(tmp_path)
    (tmp_path / "config.yaml").unlink()
    train_to_end(tmp_path)
    read_model(tmp_path)


def test_damaged_checkpoint_is_refused(tmp_path):
    path = unfinished(tmp_path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # one bit of one weight
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"the checkpoint is damaged .*checksum"):
        train_to_end(tmp_path)
    pickled = b"\x80\x04cos\nsystem\n(S'echo'\ntR."
    for broken in (b"", b"\xff" * 100, bytes(content[:1000]), pickled):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="the checkpoint is damaged"):
            train_to_end(tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_equal_states_give_equal_files(tmp_path):
    """safetensors writes several entries of its header in random order."""
    state = {"numbers": [1, 2.5, None], "weights": {"a": torch.arange(3), "b": torch.zeros(2)}}
    contents = set()
    for number in range(20):
        save_checkpoint(tmp_path / str(number), state)
        contents.add((tmp_path / str(number)).read_bytes())
    assert len(contents) == 1


def test_foreign_checkpoint_is_refused(tmp_path):
    path = unfinished(tmp_path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="the checkpoint is damaged"):
        train_to_end(tmp_path)
    state = {"summaries": [], "validation": {}, "metrics_bytes": 0, "phase": {}}
    state["model"] = {"x": torch.zeros(3)}
    for wrong in (state, {}, {**state, "summaries": [1, 2, 3]}, {**state, "model": 5}):
        save_checkpoint(path, wrong)
        with pytest.raises(InputError, match="does not fit this run"):
            train_to_end(tmp_path)


def test_checkpoints_hold_what_they_were_given(tmp_path):
    shared = torch.randn(3)
    state = {
        "a": [1, 2.5, None, True, "x"],
        "b": {0: {"c": shared, "d": shared[:0]}, "e": (shared, torch.tensor(2))},
    }
    save_checkpoint(tmp_path / "c", state)
    found = load_checkpoint(tmp_path / "c")
    assert found["a"] == state["a"] and torch.equal(found["b"][0]["c"], shared)
    assert found["b"][0]["d"].shape == (0,) and found["b"]["e"][1].shape == ()
    with pytest.raises(TypeError, match="cannot be saved"):
        save_checkpoint(tmp_path / "c", {"f": object()})
