"""Checkpoints of runs: what they hold, and how damaged or foreign ones are refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from attittud_lab.errors import InputError
from attittud_lab.runs.folder import load_checkpoint, save_checkpoint
from tests.helpers.interrupted_runs import train_to_end, unfinished


def test_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # one bit of one weight
    path.write_bytes(content)
    with pytest.raises(
        InputError, match=r"the checkpoint is damaged .*checksum.* delete this file"
    ):
        train_to_end(tmp_path)
    for broken in (
        b"",
        b"\xff" * 100,
        bytes(content[:1000]),
        b"\x80\x04cos\nsystem\n(S'echo'\ntR.",
    ):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="the checkpoint is damaged"):
            train_to_end(tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    """safetensors writes several entries of its header in random order."""
    state = {"numbers": [1, 2.5, None], "weights": {"a": torch.arange(3), "b": torch.zeros(2)}}
    contents = set()
    for number in range(20):
        save_checkpoint(tmp_path / str(number), state)
        contents.add((tmp_path / str(number)).read_bytes())
    assert len(contents) == 1
    found = load_checkpoint(tmp_path / "0")
    assert found["numbers"] == [1, 2.5, None] and torch.equal(
        found["weights"]["a"], torch.arange(3)
    )


def test_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="the checkpoint is damaged"):
        train_to_end(tmp_path)
    state = {
        "summaries": [],
        "validation": {},
        "metrics_bytes": 0,
        "model": {"x": torch.zeros(3)},
        "phase": {},
    }
    for wrong in (state, {}, {**state, "summaries": [1, 2, 3]}, {**state, "model": 5}):
        save_checkpoint(path, wrong)
        with pytest.raises(InputError, match="does not fit this run"):
            train_to_end(tmp_path)


def test_checkpoints_hold_what_they_were_given(tmp_path: Path) -> None:
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
