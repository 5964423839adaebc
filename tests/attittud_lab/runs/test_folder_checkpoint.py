"""Checkpoints of runs: what they hold, and how damaged or foreign ones are refused."""

import json
import pickle
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from attittud_lab.runs.folder import load_checkpoint, save_checkpoint
from attittud_lab.training.train import load_data, run
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


SMALL = """
data: {primary: {path: digits, train: 40, validation: 20, test: 30}, auxiliary: {more: {path: digits, examples: 60}}}
model: {name: mlp, width: 4}
training:
  guided: {steps: 6, evaluations: 2, primary_batch: 8, batch_size: 8}
  finetune: {steps: 4, evaluations: 2, primary_batch: 8}
log_every: 1
checkpoint_every: 2
strategy: {rank: 2, refresh_every: 2}
"""


class StopAt(Progress):
    """Ctrl-C after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def advance(self, steps: int, values: Any) -> None:
        self.left -= steps
        if self.left <= 0:
            raise KeyboardInterrupt


def small(folder: Path, strategy: str, stop: int | None = None) -> tuple[Config, Prepared]:
    """A little run in a folder, ended after so many of its 10 steps."""
    config = loads(SMALL, [f"strategy.name={strategy}"])
    data = load_data(config)
    with suppress(KeyboardInterrupt):
        run(config, run_dir=folder, data=data, progress=None if stop is None else StopAt(stop))
    return config, data


def damages(content: bytes, seed: int) -> Iterator[bytes]:
    draw, ran = random.Random(seed), Path("ran")
    yield from (
        b"",
        draw.randbytes(200),
        content[: len(content) // 2],
        b"\xff\xfe",
        b"null",
        b"[1]",
        b"{}",
        b"1" * 5000,
    )
    yield from (b"[" * depth + b"]" * depth for depth in (900, 100_000))
    yield from (b'{"config":' * depth + b"1" + b"}" * depth for depth in (900, 100_000))
    yield pickle.dumps(Payload(ran)) + b"\n"
    yield f"!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [{ran}]]\n".encode()
    for _ in range(3):
        bits = bytearray(content)
        bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
        yield bytes(bits)


class Payload:
    """Pickled, it makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("stop", [5], ids=["unfinished"])
def test_damaged_files_of_every_kind_are_refused(
    stop: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paragraph and nothing lost, or the run ends as it should; no code in them is run."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    config, data = small(tmp_path / "whole", "flip")
    small(folder, "flip", stop)
    files = {path: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}
    refused = set()
    for number, (path, content) in enumerate(files.items()):
        for damaged in damages(content, number):
            for old in folder.iterdir():
                old.unlink()
            for name, whole in files.items():
                name.write_bytes(damaged if name == path else whole)
            try:
                result = run(config, run_dir=folder, data=data)
            except InputError:
                refused.add(path.name)
                assert all(
                    name.read_bytes() == whole for name, whole in files.items() if name != path
                )
            else:
                assert json.loads((folder / "result.json").read_text())["seed"] == result.seed == 0
    # The others are written for readers, not read again.
    expected = (
        {"run.json", "checkpoint.safetensors", "metrics.jsonl", "data.json"}
        if stop
        else {"run.json", "result.json"}
    )
    assert refused == expected
    assert not (tmp_path / "ran").exists()


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
