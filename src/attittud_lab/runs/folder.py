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
from attittud_lab.errors import InputError, one_line, short
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

_FILES = (
    "result.json",  # first: an interrupted removal leaves nothing to trust
    "checkpoint.safetensors",
    "weights.safetensors",
    "model.json",
    "leaderboard.json",
    "out_of_fold.safetensors",
    "report.html",
    "report.json",
    "channels.safetensors",
    "metrics.jsonl",
    "data.json",
    "run.json",
    "config.yaml",
    "member-*",
    "features-*",
    "plan*.json",
    "suspicious*.csv",
    "network*/*",
)
"""Patterns of the files that a run may have written."""
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
    """Reads and writes the files of a run."""

    def __init__(self, path: Path, config: Config, *, fresh: bool) -> None:
        """Open a folder, which need not exist; refuses one with results of another configuration.

        With `fresh` the files of an earlier run are removed.
        """
        self.path = path
        self.config = config
        self.about_path = path / "run.json"
        self.result_path = path / "result.json"
        self.channels_path = path / "channels.safetensors"
        self.checkpoint_path = path / "checkpoint.safetensors"
        self.metrics_path = path / "metrics.jsonl"
        self.trials_path = path / "trials"
        # A run that left nothing to continue from does not block another run.
        nothing_to_continue = self.about_path.exists() and not self._holds_results()
        if fresh or nothing_to_continue:
            self._clear()
        self._check_same_config()

    def _holds_results(self) -> bool:
        """Whether there is a result, or anything that a run could continue from."""
        paths = (self.result_path, self.checkpoint_path, self.trials_path)
        return any(path.exists() for path in paths)

    def _clear(self) -> None:
        """Remove all files of an earlier run, and no others."""
        with _writing(self.path):
            for pattern in _FILES:
                for file in self.path.glob(pattern):
                    file.unlink(missing_ok=True)
            self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Remove what a run needs only to continue."""
        self.checkpoint_path.unlink(missing_ok=True)
        if self.trials_path.exists():
            shutil.rmtree(self.trials_path)

    def _check_same_config(self) -> None:
        """Refuse a folder whose run has other settings, and results that belong to no run."""
        advice = f"choose another folder with output=FOLDER, or {_OVER}"
        if not self.about_path.exists():
            if self._holds_results():
                raise InputError(f"{self.path}: has results of a run, but no run.json; {advice}")
            return
        about = read_format(self.about_path, VERSION)
        try:
            differing = differences(about["config"], comparable(self.config))
        except (LookupError, TypeError):
            raise InputError(f"{self.about_path}: is damaged; {advice}") from None
        if differing:
            first = "; ".join(differing[:3])
            problem = f"{self.path} holds a run with another configuration ({first})"
            raise InputError(f"{problem}; {advice}")

    def result(self) -> RunResult | None:
        """Return the result of a finished run, and remove what it no longer needs; None for an
        unfinished run.
        """
        if not self.result_path.exists():
            return None
        try:
            finished = RunResult.read(read_json(self.result_path), self.path)
        except ValueError as error:
            problem = f"{self.result_path}: is damaged ({one_line(error, 200)})"
            raise InputError(f"{problem}; {_OVER}") from None
        with suppress(OSError):  # a process that was killed right after the result leaves these
            self._remove_unfinished()
        return finished

    def threads(self) -> int | None:
        """Return the threads of a run that continues here; None for a new run.

        Another number would change its last digits.
        """
        if not self.about_path.exists():
            return None
        count = read_format(self.about_path, VERSION).get("threads")
        return checked_threads(self.about_path, count)

    def begin(self, record: Mapping[str, Any], device: torch.device, threads: int | None) -> None:
        """Write the data's `record`, the configuration and run.json, all known before the first step.

        A run that continues must have the same data. `threads` is None where a portfolio chooses
        the number later, and notes it then.
        """
        rows = self.path / "data.json"
        config = dump(self.config).encode()
        if self.about_path.exists():
            # Through JSON, so that both sides of the comparison have the same types.
            if read_json(rows) != json.loads(json.dumps(record)):
                problem = f"{self.path}: the data have changed since this run began"
                raise InputError(f"{problem}; {_OVER}, or restore the data")
            # Again, since the file may be gone, and predictions read it.
            write_atomically(self.path / "config.yaml", config)
            return
        write_json(rows, record)
        write_atomically(self.path / "config.yaml", config)
        on_gpu = device.type == "cuda"
        facts = {
            "version": VERSION,
            "config": comparable(self.config),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": torch.cuda.get_device_name(device) if on_gpu else str(device),
            "threads": threads,
            "repeatable": not on_gpu or self.config.training.deterministic,
        }
        # Last: now the folder is this run's.
        write_json(self.about_path, facts | provenance(_PACKAGES))

    def checkpoint(self) -> dict[str, Any] | None:
        """Return the state to continue from; None for a new run."""
        if not self.checkpoint_path.exists():
            return None
        return load_checkpoint(self.checkpoint_path)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, with the length of the metrics that belong to it."""
        with _writing(self.metrics_path), self.metrics_path.open("ab") as file:
            os.fsync(file.fileno())
            size = file.tell()
        save_checkpoint(self.checkpoint_path, {**state, "metrics_bytes": size})

    def truncate(self, size: int) -> None:
        """Cut the file of metrics to `size` bytes, its length at the checkpoint.

        The steps that came later will be done again.
        """
        path = self.metrics_path
        with _writing(path), path.open("ab") as file:
            if file.tell() < size:
                reason = "lines that the checkpoint relies on are missing"
                raise InputError(f"{path}: {reason}; {_OVER}")
            file.truncate(size)

    def record(self, values: Mapping[str, Any]) -> None:
        """Add a line of metrics."""
        with _writing(self.metrics_path), self.metrics_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def note(self, name: str, value: Any) -> None:
        """Add a value to run.json that is not known before the end."""
        write_json(self.about_path, read_format(self.about_path, VERSION) | {name: value})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, which makes the run complete."""
        write_json(self.result_path, result)
        with _writing(self.checkpoint_path):
            self._remove_unfinished()


def checked_threads(path: Path, count: Any) -> int:
    """Return a number of threads that was read from a file."""
    if type(count) is not int or count < 1:
        raise InputError(f"{path}: {short(repr(count))} is no number of threads; {_OVER}")
    return count


def trained_once(
    path: Path,
    config: Config,
    train: Callable[[RunFolder], RunResult],
    *,
    fresh: bool,
) -> RunResult:
    """Return the result of the finished run in a folder; if there is none, call `train` and write
    its result.

    No other process works in the folder meanwhile. `fresh` removes an earlier run first.
    """
    make_folder(path)
    with only_one_process(path):
        folder = RunFolder(path, config, fresh=fresh)
        result = folder.result()
        if result is None:
            result = train(folder)
            folder.finish(result.plain())
        return result


def comparable(config: Config) -> dict[str, Any]:
    """Return the settings that make two runs the same.

    These are all but the output folder, the cache and the section `compare`.
    """
    plain: dict[str, Any] = to_dict(config)
    del plain["output"], plain["compare"], plain["data"]["cache"]
    return plain


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return one line for each setting that differs, such as "seed: 0 there, 1 here".

    `path` is the name of the section that `old` and `new` are.
    """
    if old == new:
        return []
    if not isinstance(old, dict) or not isinstance(new, dict):
        return [f"{path}: {old!r:.100} there, {new!r:.100} here"]
    lines: list[str] = []
    for key in old | new:
        below = f"{path}.{key}".removeprefix(".")
        lines += differences(old.get(key, "nothing"), new.get(key, "nothing"), below)
    return lines


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested mappings and lists of tensors, numbers, texts and None as safetensors.

    No pickle: tensors are tensors, everything else is JSON in the file's header, behind a checksum
    over both. The header has a single entry, because safetensors writes several in random order,
    and equal states must give equal files.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_flatten(state, "", tensors))  # moves the tensors into `tensors`
    header = f"{_STATE_VERSION} {_checksum(text, tensors)} {text}"
    write_atomically(path, save(tensors, {_HEADER: header}))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint on the CPU; refuses a file that is damaged or not from a run."""
    tensors = {}
    try:
        with safe_open(path, framework="pt") as file:
            version, checksum, text = file.metadata()[_HEADER].split(" ", 2)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                # Copies, aligned as torch aligns its own tensors: a dot product of unaligned
                # tensors may add up in another order (MKL on AMD's processors), and the run would
                # continue with other last digits.
                tensors[name] = file.get_tensor(name).clone()
        if version != _STATE_VERSION:
            raise ValueError(f"it has format {version[:20]}, not {_STATE_VERSION}")
        if checksum != _checksum(text, tensors):
            raise ValueError("its checksum is wrong")
        state: dict[str, Any] = _unflatten(json.loads(text), tensors)
    except (SafetensorError, OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        problem = f"{path}: the checkpoint is damaged ({type(error).__name__}: {one_line(error)})"
        advice = "delete this file to start the run from its beginning, or restore it from a backup"
        raise InputError(f"{problem}; {advice}") from None
    return state


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, with tensors replaced by their names. Adds copies of the tensors to
    `tensors`.
    """
    if isinstance(value, Tensor):
        # A copy: safetensors refuses tensors that share memory, and tied weights do.
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        # Pairs: JSON has no whole numbers as keys, optimizers do.
        pairs = []
        for key, item in value.items():
            pairs.append([key, _flatten(item, f"{name}/{key}", tensors)])
        return {"$mapping": pairs}
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
        return [_flatten(item, f"{name}/{position}", tensors) for position, item in items]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{name}: {type(value).__name__} cannot be saved")


def _unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `_flatten` got, with lists in place of tuples."""
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        return {key: _unflatten(item, tensors) for key, item in value["$mapping"]}
    if isinstance(value, list):
        return [_unflatten(item, tensors) for item in value]
    return value


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a text and of the names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
