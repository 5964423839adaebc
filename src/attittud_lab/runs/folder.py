"""The folder of a run, and the checkpoint in it. Every file in it is whole.

config.yaml            the configuration as used, readable by `attittud train`
run.json               the same as JSON, with versions, revision and hardware
data.json              which rows of which source are in which split, a checksum of the tensors, and digests of the examples
metrics.jsonl          one line for each logged step and each evaluation
checkpoint.safetensors the state of an unfinished run
channels.safetensors   strategy channel: what the labels of each source mean
weights.safetensors    the chosen model
model.json             what predictions need to know about it, its temperature, its size and its speed
plan*.json, trials/    portfolio: what its budget decided, and the trials of an unfinished run
leaderboard.json       portfolio: its candidates; out_of_fold.safetensors has their predictions for held-out labels
member-N.safetensors   portfolio: the members of the model, instead of weights.safetensors; a simple model has a .json too
features-NAME.*        portfolio: how examples become numbers for simple models
network*/              networks of transformers: the description and the tokenizer
result.json            the final figures; it is written last, so its presence means that the run is complete
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from attittud_lab.config.load import dump
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import DIGESTS
from attittud_lab.errors import InputError, one_line
from attittud_lab.files import (
    cannot_write,
    make_folder,
    only_one_process,
    read_format,
    read_json,
    write_atomically,
    write_json,
)
from attittud_lab.runs.result import RunResult, provenance

# The result first: an interrupted removal leaves nothing to trust.
_FILES: tuple[str, ...] = (
    "result.json",
    "checkpoint.safetensors",
    "weights.safetensors",
    "model.json",
)
_FILES += ("leaderboard.json", "out_of_fold.safetensors", "report.html", "report.json")
_FILES += ("channels.safetensors", "metrics.jsonl", "data.json", "run.json", "config.yaml")
_TRIALS = "trials"  # a folder that nobody needs after the end of a run
_PARTS = ("member-*", "features-*", "plan*.json", "suspicious*.csv", "network*/*")
"""Patterns of the files of a portfolio: of the members of its model, its plans and its report. The
last one is for the descriptions of networks, which other runs have too.
"""
VERSION = 1
"""The format of run.json, and of all files in the folder without a version of their own."""
REMARK = "remark"
"""The entry of run.json with what a person should know about the end of a run."""
_PACKAGES = ("numpy", "scikit-learn", "pyarrow", "pillow", "safetensors", "transformers", "torchjd")
_OVER = "start over with --fresh"
_TENSOR = "$tensor"
_HEADER = "checkpoint"
_STATE_VERSION = "1"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn a failed write into an error with a cure."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from None


class RunFolder:
    """Reads and writes these files; a folder with a result or a checkpoint of another configuration
    is refused.
    """

    def __init__(self, path: Path, config: Config, *, fresh: bool = False) -> None:
        self.path, self.config = path, config
        self.about_path = path / "run.json"
        self.result_path = path / "result.json"
        self.channels_path = path / "channels.safetensors"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.metrics_path = path / "metrics.jsonl"
        self.trials_path = path / _TRIALS
        if self.trials_path.is_symlink():
            raise InputError(
                f"{self.trials_path}: is a link, but a run folder must hold its own files; remove it"
            )
        for file in _own_files(path):
            link = file.is_symlink()  # writing would follow the link
            if link or (file.exists() and not file.is_file()):
                what = "a link" if link else "not a regular file"
                raise InputError(
                    f"{file}: is {what}, but a run folder must hold its own files; remove it"
                )
        # A run that left nothing to continue from does not block another run.
        if fresh or (self.about_path.exists() and not self._holds_results()):
            with _writing(path):
                for file in _own_files(path):
                    file.unlink(missing_ok=True)
                _remove_trials(self.path)
        self._check_same_config()

    def _holds_results(self) -> bool:
        return any(
            path.exists() for path in (self.result_path, self.checkpoint_path, self.trials_path)
        )

    def _check_same_config(self) -> None:
        other = "choose another output=FOLDER"
        if not self.about_path.exists():
            if self._holds_results():
                raise InputError(
                    f"{self.path}: the run folder is incomplete: it has results but no run.json; {other}"
                )
            return
        about = read_format(self.about_path, VERSION)
        try:
            differing = differences(about["config"], comparable(self.config))
        except (LookupError, TypeError, RecursionError):
            raise InputError(
                f"{self.about_path}: is damaged, or was not written by a run; {other}, or {_OVER}"
            ) from None
        if differing:
            problem = (
                f"{self.path} holds a run with another configuration ({'; '.join(differing[:3])})"
            )
            raise InputError(f"{problem}; choose another folder with output=FOLDER, or {_OVER}")

    def result(self) -> RunResult | None:
        """The result of a finished run; None for an unfinished run."""
        if not self.result_path.exists():
            return None
        try:
            finished = RunResult.read(read_json(self.result_path), self.path)
        except ValueError as error:
            problem = f"{self.result_path}: is damaged, or was not written by a run ({one_line(error, 200)})"
            raise InputError(f"{problem}; {_OVER}") from None
        with suppress(OSError):  # a process that was killed right after the result leaves these
            self.checkpoint_path.unlink(missing_ok=True)
            _remove_trials(self.path)
        return finished

    def threads(self) -> int | None:
        """Return the threads of a run that continues here: another number would change its last
        digits. None for a new run.
        """
        if not self.about_path.exists():
            return None
        count = read_format(self.about_path, VERSION).get("threads")
        if type(count) is not int or count < 1:
            raise InputError(
                f"{self.about_path}: threads is {count!r}, which no run writes; {_OVER}"
            )
        return count

    def begin(self, record: Mapping[str, Any], device: torch.device, threads: int | None) -> None:
        """Write what is known before the first step, or check that a continued run has the same
        data.

        `threads` is None where a portfolio chooses the number later, and notes it then.
        """
        rows = self.path / "data.json"
        # Through JSON, so that both sides of the comparison have the same types.
        plain = json.loads(json.dumps(record))
        if not self.about_path.exists():
            write_json(rows, plain)
            write_atomically(self.path / "config.yaml", dump(self.config).encode())
            started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            facts: dict[str, Any] = {
                "version": VERSION,
                "config": comparable(self.config),
                "started": started,
            }
            facts["device"] = (
                torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
            )
            facts["threads"] = threads
            facts["repeatable"] = device.type == "cpu" or self.config.training.deterministic
            write_json(
                self.about_path, facts | provenance(_PACKAGES)
            )  # last: now the folder is this run's
            return
        # Only one run of a comparison has digests. Other data have another checksum anyway.
        earlier = read_json(rows)
        if not isinstance(earlier, dict) or earlier | {DIGESTS: None} != plain | {DIGESTS: None}:
            problem = f"{self.path}: the data have changed since this run began"
            raise InputError(f"{problem}; {_OVER}, or restore the data")

    def checkpoint(self) -> dict[str, Any] | None:
        return load_checkpoint(self.checkpoint_path) if self.checkpoint_path.exists() else None

    def save(self, state: Mapping[str, Any]) -> None:
        """A checkpoint, with the length of the metrics that belong to it."""
        with _writing(self.metrics_path), self.metrics_path.open("ab") as file:
            os.fsync(file.fileno())
            size = file.tell()
        save_checkpoint(self.checkpoint_path, {**state, "metrics_bytes": size})

    def truncate(self, size: int) -> None:
        """Remove metrics that came after the checkpoint: their steps will be done again."""
        path = self.metrics_path
        with _writing(path), path.open("a+b") as file:
            if file.seek(0, os.SEEK_END) < size:
                raise InputError(
                    f"{path}: lines that the checkpoint relies on are missing; {_OVER}"
                )
            file.seek(0)
            for number, line in enumerate(file.read(size).splitlines(), 1):
                if not _is_object(line):
                    raise InputError(
                        f"{path}:{number}: is not a line of metrics; restore the file, or {_OVER}"
                    )
            file.truncate(size)

    def record(self, values: Mapping[str, Any]) -> None:
        with _writing(self.metrics_path), self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def note(self, name: str, value: Any) -> None:
        """Add values to run.json that are not known before the end."""
        write_json(self.about_path, read_format(self.about_path, VERSION) | {name: value})

    def finish(self, result: Mapping[str, Any]) -> None:
        write_json(self.result_path, result)
        with _writing(self.checkpoint_path):
            self.checkpoint_path.unlink(missing_ok=True)
            _remove_trials(self.path)


def trained_once(
    path: Path, config: Config, train: Callable[[RunFolder], RunResult], *, fresh: bool
) -> RunResult:
    """Return the result of the finished run in a folder, or else of `train`; no other process works
    there meanwhile.
    """
    make_folder(path)
    with only_one_process(path):
        folder = RunFolder(path, config, fresh=fresh)
        result = folder.result()
        if result is None:
            result = train(folder)
            folder.finish(result.plain())
        return result


def _remove_trials(path: Path) -> None:
    if (path / _TRIALS).exists():
        shutil.rmtree(path / _TRIALS)


def _own_files(path: Path) -> Iterator[Path]:
    """Yield the files that a run may have written."""
    for name in _FILES:
        yield path / name
    for pattern in _PARTS:
        yield from path.glob(pattern)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def comparable(config: Config) -> dict[str, Any]:
    """The settings that make two runs the same: all but the output folder, the token cache and the
    section `compare`.
    """
    plain: dict[str, Any] = to_dict(config)
    del plain["output"], plain["compare"], plain["data"]["cache"]
    return plain


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The settings that differ, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines: list[str] = []
        for key in old | new:
            lines += differences(
                old.get(key, "nothing"), new.get(key, "nothing"), f"{path}.{key}" if path else key
            )
        return lines
    return [] if old == new else [f"{path}: {old!r:.100} there, {new!r:.100} here"]


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested mappings and lists of tensors, numbers, texts and None into one safetensors
    file.

    No pickle: tensors are tensors, everything else is JSON in the file's header, behind a checksum
    over both. The header has a single entry, because safetensors writes several in random order,
    and equal states must give equal files.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_flatten(state, "", tensors))
    write_atomically(
        path, save(tensors, {_HEADER: f"{_STATE_VERSION} {_checksum(text, tensors)} {text}"})
    )


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint on the CPU; refuses a file that is damaged or not from a run."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies, aligned as torch aligns its own tensors: a dot product of unaligned tensors
            # may add up in another order (MKL on AMD's processors), and the run would continue with
            # other last digits.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a mapping
        version, checksum, text = metadata[_HEADER].split(" ", 2)
        if version != _STATE_VERSION:
            raise ValueError(f"it has format {version[:20]}, not {_STATE_VERSION}")
        if checksum != _checksum(text, tensors):
            raise ValueError("its checksum is wrong")
        state: dict[str, Any] = _unflatten(json.loads(text), tensors)
        if not isinstance(state, dict):
            raise ValueError("it is not a mapping")
    except (SafetensorError, OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        problem = f"{path}: the checkpoint is damaged ({type(error).__name__}: {one_line(error)})"
        cure = "delete this file to start the run from its beginning, or restore it from a backup"
        raise InputError(f"{problem}; {cure}") from None
    return state


def check_like(value: Any, like: Any, name: str) -> None:
    """Raise ValueError unless a value has the same keys, shapes and types as another value."""
    if isinstance(like, Mapping):
        if not isinstance(value, Mapping) or value.keys() != like.keys():
            raise ValueError(f"{name} has other entries than this run")
        for key, item in like.items():
            check_like(value[key], item, f"{name}/{key}")
    elif not isinstance(value, Tensor) or (value.shape, value.dtype) != (like.shape, like.dtype):
        raise ValueError(
            f"{name} is not a tensor of shape {tuple(like.shape)} and type {like.dtype}"
        )


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # A copy: safetensors refuses tensors that share memory, and tied weights do.
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        # JSON has no whole numbers as keys, optimizers do.
        return {
            "$mapping": [
                [key, _flatten(item, f"{name}/{key}", tensors)] for key, item in value.items()
            ]
        }
    if isinstance(value, (list, tuple)):
        return [
            _flatten(item, f"{name}/{position}", tensors) for position, item in enumerate(value)
        ]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{name}: {type(value).__name__} cannot be saved")


def _unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        return {key: _unflatten(item, tensors) for key, item in value["$mapping"]}
    if isinstance(value, list):
        return [_unflatten(item, tensors) for item in value]
    return value


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
