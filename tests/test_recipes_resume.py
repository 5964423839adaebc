"""Interrupted runs: killed at any moment, continued to the same result; damage is noticed, not trusted."""

import errno
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from attittud_lab import files
from attittud_lab.cli import main
from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from attittud_lab.runs.folder import load_checkpoint, save_checkpoint
from attittud_lab.training.train import load_data, run

# Dropout, a refresh interval and a logging interval that do not divide the checkpoints', momentum in the optimizer,
# BatchNorm's buffers, and a learning rate with which the last model is not the best: all that a resumed run could get wrong.
JOB = """
data:
  primary: {path: digits, train: 60, validation: 60, test: 200}
  auxiliary: {more: {path: digits, examples: 400}, few: {path: digits, classes: ["1", "7"]}}
model: {name: wideresnet-10-1, dropout: 0.2}
training:
  guided: {steps: 30, evaluations: 4, primary_batch: 16, batch_size: 16, schedule: plateau, lr: 0.2}
  finetune: {steps: 10, evaluations: 4, primary_batch: 16, schedule: cosine}
  reset_head: true
log_every: 2
checkpoint_every: 3
strategy: {name: flip, rank: 3, refresh_every: 4, basis_batch: 20}
"""


def train_to_end(folder: Path, strategy: str | None = None, model: str = "mlp") -> None:
    torch.set_num_threads(1)
    config = loads(JOB, [f"model.name={model}"])
    run(config, 0, strategy or config.strategy, folder)


def outcome(folder: Path) -> tuple[Any, Any, bytes]:
    """All that a run leaves but the clock's readings."""
    result = json.loads((folder / "result.json").read_text())
    for phase in result["phases"]:
        del phase["seconds"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return result, lines, (folder / "weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    train_to_end(folder)
    return folder


def _written(folder: Path) -> int | None:
    """When the checkpoint was written; None without one."""
    try:
        return (folder / "checkpoint.safetensors").stat().st_mtime_ns
    except FileNotFoundError:
        return None


def train_by_command(folder: Path, strategy: str | None = None, model: str = "mlp") -> None:
    """The same through `attittud train`, into folder/job/STRATEGY/seed-0."""
    torch.set_num_threads(1)
    job = folder.parent / "job.yaml"
    job.write_text(JOB)
    with suppress(SystemExit), redirect_stdout(StringIO()):
        main(["train", str(job), "--quiet", f"output={folder}", f"strategy.name={strategy}", f"model.name={model}"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be killed by a signal")
@pytest.mark.parametrize(("train", "strategy", "wanted"), [(train_to_end, None, 20), (train_by_command, "auto", 10)])
def test_kills_change_nothing(train: Any, strategy: str | None, wanted: int, tmp_path: Path) -> None:
    whole, tmp_path = tmp_path / "undisturbed" / "x", tmp_path / "killed" / "x"
    whole.parent.mkdir()
    tmp_path.parent.mkdir()
    train(whole, strategy, "wideresnet-10-1")
    inner = "job/auto/seed-0" if strategy else ""
    killed, undisturbed = tmp_path / inner, whole / inner
    # A server that has imported everything: a child is there at once, and most of its life is training.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["attittud_lab.cli", "attittud_lab.training.train", "attittud.guide", "torch._dynamo", "sklearn.metrics"]
    )
    moments = random.Random(0)
    kills = attempts = 0
    while kills < wanted:
        attempts += 1
        assert attempts < 60, "the run is over too early to be killed so often"
        process = context.Process(target=train, args=(tmp_path, strategy, "wideresnet-10-1"))
        before = _written(killed)
        process.start()
        if attempts % 2:  # while it trains, however slow the machine is
            while process.is_alive() and _written(killed) == before:
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.3))
        else:  # anywhere: while it reads, too
            time.sleep(moments.uniform(0.05, 0.6))
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            # What a killed process leaves is whole, or not there.
            for path in killed.glob("*.json"):
                json.loads(path.read_text())
        elif (killed / "result.json").exists():
            (killed / "result.json").unlink()  # it was faster than the kill: its last part is done again
    train(tmp_path, strategy, "wideresnet-10-1")
    assert outcome(killed) == outcome(undisturbed)
    assert not list(tmp_path.rglob(".*.part"))


@pytest.mark.parametrize("strategy", ["auto", "bloop", "multitask", "torchjd_gradvac"])
def test_interruption_with_other_strategies(tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if strategy.startswith("torchjd"):
        pytest.importorskip("torchjd", reason="the extra torchjd is not installed")
    train_to_end(tmp_path / "whole", strategy)
    saved = files.write_atomically

    def interrupted(path: Path, content: bytes) -> None:
        saved(path, content)
        interrupted.count += path.name.startswith("checkpoint")
        if interrupted.count in (5, 9, 13, 17):
            interrupted.count += 1
            raise KeyboardInterrupt

    interrupted.count = 0
    monkeypatch.setattr("attittud_lab.runs.folder.write_atomically", interrupted)
    times = 0
    while not (tmp_path / "parts" / "result.json").exists():
        try:
            train_to_end(tmp_path / "parts", strategy)
        except KeyboardInterrupt:
            times += 1
    assert times >= 1
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def unfinished(folder: Path) -> Path:
    """A folder as a killed run leaves it; returns its checkpoint."""
    original = files.write_atomically

    def stop(path: Path, content: bytes) -> None:
        original(path, content)
        if path.name.startswith("checkpoint"):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attittud_lab.runs.folder.write_atomically", stop)
        with pytest.raises(KeyboardInterrupt):
            train_to_end(folder)
    return folder / "checkpoint.safetensors"


def test_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # one bit of one weight
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"the checkpoint is damaged .*checksum.* delete this file"):
        train_to_end(tmp_path)
    for broken in (b"", b"\xff" * 100, bytes(content[:1000]), b"\x80\x04cos\nsystem\n(S'echo'\ntR."):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="the checkpoint is damaged"):
            train_to_end(tmp_path)
    assert not (tmp_path / "result.json").exists()


def test_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="the checkpoint is damaged"):
        train_to_end(tmp_path)
    state = {"summaries": [], "validation": {}, "metrics_bytes": 0, "model": {"x": torch.zeros(3)}, "phase": {}}
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


def paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Everything in a nested state but its root."""
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from paths(item, (*path, key))


def with_value(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with one thing replaced, or without it for a value of `...`."""
    if not path:
        return value
    items = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
    found = [(key, with_value(item, path[1:], value) if key == path[0] else item) for key, item in items]
    found = [(key, item) for key, item in found if item is not ...]
    return dict(found) if isinstance(tree, dict) else [item for _, item in found]


WRONG = (None, "x", -1, 3.5, [], {}, True, 10**30, torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64), [[1]], ...)


@pytest.mark.parametrize("strategy", ["auto", "bloop"])
@pytest.mark.parametrize("stop", [5, 9], ids=["guided", "finetune"])
def test_wrong_types_in_a_checkpoint(strategy: str, stop: int, tmp_path: Path) -> None:
    """Its checksum is right. What is not refused has no effect, or is a value that a run could have written."""
    config, data = small(tmp_path / "run", strategy, stop)
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    state, files = load_checkpoint(checkpoint), {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    cases = [(path, wrong) for path in paths(state) for wrong in WRONG if "param_groups" not in path]
    words = []
    for path, wrong in random.Random(stop).sample(cases, 40):
        for name, content in files.items():
            name.write_bytes(content)
        save_checkpoint(checkpoint, with_value(state, path, wrong))
        try:
            run(config, run_dir=tmp_path / "run", data=data)
            (tmp_path / "run" / "result.json").unlink()
        except InputError as error:
            words.append(str(error))
            assert all(name.read_bytes() == content for name, content in files.items() if name != checkpoint)
    refusals = r"does not fit this run|is damaged|of another model|lines are missing"
    assert len(words) > 25 and all(re.search(refusals, said) for said in words)
    for path, wrong in {
        ("phase", "state", "step"): "3",
        ("phase", "best", "body.layers.1.weight"): torch.zeros(3),
        ("phase", "optimizer", "state", 0, "exp_avg"): torch.zeros(1),
        ("phase", "strategy"): {"mean": torch.zeros(3)} if strategy == "bloop" else {"version": 1},
        ("metrics_bytes",): 3.5,
    }.items():
        if stop == 9 and path == ("phase", "strategy"):
            continue  # fine-tuning keeps nothing
        for name, content in files.items():
            name.write_bytes(content)
        save_checkpoint(checkpoint, with_value(state, path, wrong))
        with pytest.raises(InputError):
            run(config, run_dir=tmp_path / "run", data=data)


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


@pytest.mark.parametrize("stop", [5, None], ids=["unfinished", "finished"])
def test_damaged_files_of_every_kind(stop: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
                assert all(name.read_bytes() == whole for name, whole in files.items() if name != path)
            else:
                assert json.loads((folder / "result.json").read_text())["seed"] == result.seed == 0
    # The others are written for readers, not read again.
    expected = (
        {"run.json", "checkpoint.safetensors", "metrics.jsonl", "data.json"} if stop else {"run.json", "result.json"}
    )
    assert refused == expected
    assert not (tmp_path / "ran").exists()


def test_missing_or_strange_files_are_noticed(tmp_path: Path) -> None:
    path = unfinished(tmp_path)
    save_checkpoint(path, {**load_checkpoint(path), "metrics_bytes": 10**6})
    with pytest.raises(InputError, match="lines are missing that the checkpoint counts on"):
        train_to_end(tmp_path)
    (tmp_path / "result.json").write_text('{"strategy": "flip"}')
    with pytest.raises(InputError, match=r"result\.json: is not what a run writes"):
        train_to_end(tmp_path)
    for content in ("[1]", "{", "{}"):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(InputError, match=r"run\.json"):
            train_to_end(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(InputError, match="no whole run folder"):
        train_to_end(tmp_path)
    # None of this is in the way of a fresh start.
    assert run(loads(JOB, ["model=mlp"]), run_dir=tmp_path, fresh=True).steps == 40


def test_links_are_not_written_through(tmp_path: Path) -> None:
    """A folder from somebody else, whose metrics lead to a file of ours."""
    diary = tmp_path / "diary"
    diary.write_text("my words")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").symlink_to(diary)
    with pytest.raises(InputError, match=r"metrics\.jsonl: is a link"):
        train_to_end(tmp_path / "run")
    assert diary.read_text() == "my words"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_folders_in_place_of_files_are_refused(tmp_path: Path) -> None:
    """Reading a pipe would wait for ever."""
    for number, name in enumerate(("run.json", "checkpoint.safetensors", "metrics.jsonl", "result.json")):
        folder = tmp_path / str(number)
        unfinished(folder)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name) if number % 2 else (folder / name).mkdir()
        with pytest.raises(InputError, match=rf"{name}: is no plain file; .* remove it"):
            train_to_end(folder)


def test_checkpoints_hold_what_they_were_given(tmp_path: Path) -> None:
    shared = torch.randn(3)
    state = {"a": [1, 2.5, None, True, "x"], "b": {0: {"c": shared, "d": shared[:0]}, "e": (shared, torch.tensor(2))}}
    save_checkpoint(tmp_path / "c", state)
    found = load_checkpoint(tmp_path / "c")
    assert found["a"] == state["a"] and torch.equal(found["b"][0]["c"], shared)
    assert found["b"][0]["d"].shape == (0,) and found["b"]["e"][1].shape == ()
    with pytest.raises(TypeError, match="cannot be saved"):
        save_checkpoint(tmp_path / "c", {"f": object()})


def test_what_a_checkpoint_held_lies_as_torch_would_lay_it(tmp_path: Path) -> None:
    """Else a dot product may add up in another order than before the interruption."""
    save_checkpoint(tmp_path / "c", {str(size): torch.randn(size) for size in range(1, 20)})
    assert {tensor.data_ptr() % 64 for tensor in load_checkpoint(tmp_path / "c").values()} == {0}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_full_disk_leaves_nothing_half_written(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text("old")

    def full(_handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    expected = {errno.ENOSPC: "the disk is full; free some space", errno.EACCES: "may not be written"}
    with pytest.raises(InputError, match=expected.get(number, "cannot be written")):
        files.write_json(tmp_path / "a.json", {"new": 1})
    assert (tmp_path / "a.json").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_ctrl_c_in_mid_write_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_json(tmp_path / "a.json", {"new": 1})
    assert list(tmp_path.iterdir()) == []


def test_full_disk_in_mid_run(undisturbed: Path, tmp_path: Path) -> None:
    """The run fails with a cure; with space again it ends as if nothing had been."""
    original = os.fsync
    calls = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="the disk is full"):
            train_to_end(tmp_path)
    train_to_end(tmp_path)
    assert outcome(tmp_path) == outcome(undisturbed)


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IREAD | stat.S_IEXEC)
    try:
        with pytest.raises(InputError, match=r"may not be written .* output=FOLDER"):
            train_to_end(tmp_path / "run")
    finally:
        tmp_path.chmod(stat.S_IRWXU)


def test_file_system_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_settings: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"may not be written \(Read-only file system\); choose another folder"):
        train_to_end(tmp_path / "run")


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .* output=FOLDER"):
        train_to_end(tmp_path / "file" / "run")


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    for attempt in (files.make_folder, lambda path: files.write_json(path, {})):
        with pytest.raises(InputError, match=r"cannot be .*; choose another folder by output=FOLDER"):
            attempt(tmp_path / name)


def test_second_process_in_a_folder_is_refused(tmp_path: Path) -> None:
    code = "import sys, pathlib\nfrom attittud_lab.files import only_one_process\n"
    code += "with only_one_process(pathlib.Path(sys.argv[1])):\n    print('in', flush=True)\n    sys.stdin.read()\n"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin and other.stdout and other.stdout.readline()
        with (
            pytest.raises(InputError, match="another process is training in this folder"),
            files.only_one_process(tmp_path),
        ):
            pass
        other.stdin.close()
    with files.only_one_process(tmp_path):
        pass


def test_changed_data_are_noticed(tmp_path: Path) -> None:
    unfinished(tmp_path)
    record = json.loads((tmp_path / "data.json").read_text())
    record["primary"]["train"]["rows"][0] += 1
    (tmp_path / "data.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="the data have changed"):
        train_to_end(tmp_path)
