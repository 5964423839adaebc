"""The folder of a run. Every file in it is whole: a reader may trust what is there.

config.yaml            the configuration as used, readable by `attittud train`
run.json               the same as JSON, with versions, revision and hardware
data.json              which rows of which source are in which split, and a checksum of the tensors
metrics.jsonl          one line for each logged step and each evaluation
checkpoint.safetensors while the run is unfinished
weights.safetensors    the chosen model
result.json            the final figures; it is written last, its presence means that the run is complete
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from attittud_lab.config.load import dump, loads
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.errors import InputError, one_line
from attittud_lab.files import cannot_write, read_json, write_atomically, write_json
from attittud_lab.models.network import save_weights
from attittud_lab.runs.checkpoint import load_checkpoint, save_checkpoint
from attittud_lab.runs.result import RunResult, provenance

_FILES = (
    "result.json",
    "checkpoint.safetensors",
    "weights.safetensors",
    "metrics.jsonl",
    "data.json",
    "run.json",
    "config.yaml",
)

_PACKAGES = ("numpy", "scikit-learn", "pyarrow", "pillow", "safetensors", "transformers", "torchjd")


class RunFolder:
    """Reads and writes these files; a folder with a result or a checkpoint of another configuration is refused."""

    def __init__(self, path: Path, config: Config, *, fresh: bool = False) -> None:
        self.path, self.config = path, config
        self.checkpoint_path = path / "checkpoint.safetensors"
        for name in _FILES:
            link = (path / name).is_symlink()  # writing would go to wherever it leads
            if link or ((path / name).exists() and not (path / name).is_file()):
                what = "a link" if link else "no plain file"
                raise InputError(f"{path / name}: is {what}; run folders hold their own files, remove it")
        if fresh or self._begun_in_vain():
            try:
                for name in _FILES:  # the result first: an interrupted removal leaves nothing to trust
                    (path / name).unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(path, error) from None
        self._check_same_config()

    def _begun_in_vain(self) -> bool:
        """A run that left nothing to continue from: it does not stand in the way of another one."""
        kept = (self.path / "result.json").exists() or self.checkpoint_path.exists()
        return (self.path / "run.json").exists() and not kept

    def _check_same_config(self) -> None:
        known = self.path / "run.json"
        if not known.exists():
            if (self.path / "result.json").exists() or self.checkpoint_path.exists():
                raise InputError(
                    f"{self.path}: there are results but no run.json; it is no whole run folder, choose another output=FOLDER"
                )
            return
        about = read_json(known)
        try:
            differing = differences(_completed(about["config"]), comparable(self.config))
        except (LookupError, TypeError, RecursionError):
            raise InputError(
                f"{known}: is not what a run writes; choose another output=FOLDER, or start over with --fresh"
            ) from None
        if differing:
            raise InputError(
                f"{self.path} holds a run with another configuration ({'; '.join(differing[:3])}); choose another folder by "
                "output=FOLDER, or start over with --fresh"
            )

    def result(self) -> RunResult | None:
        """What a finished run found; None for an unfinished one."""
        path = self.path / "result.json"
        if not path.exists():
            return None
        try:
            return RunResult.read(read_json(path), self.path)
        except ValueError as error:
            raise InputError(
                f"{path}: is not what a run writes ({one_line(error, 200)}); start over with --fresh"
            ) from None

    def begin(self, record: Mapping[str, Any], device: torch.device) -> None:
        """Write what is known before the first step, or check that a continued run has the same data."""
        about, rows = self.path / "run.json", self.path / "data.json"
        # Through JSON, so that what is compared has the same types.
        plain = json.loads(json.dumps(record))
        if not about.exists():
            write_json(rows, plain)
            write_atomically(self.path / "config.yaml", dump(self.config).encode())
            started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            facts: dict[str, Any] = {"config": comparable(self.config), "started": started, "device": _device(device)}
            facts["repeatable"] = device.type == "cpu" or self.config.training.deterministic
            write_json(about, facts | provenance(_PACKAGES))  # last: with it the folder belongs to this run
        elif read_json(rows) != plain:
            raise InputError(
                f"{self.path}: the data have changed since this run began; start over with --fresh, or restore the data"
            )

    def checkpoint(self) -> dict[str, Any] | None:
        return load_checkpoint(self.checkpoint_path) if self.checkpoint_path.exists() else None

    def save(self, state: Mapping[str, Any]) -> None:
        """A checkpoint, with the length of the metrics that belong to it."""
        metrics = self.path / "metrics.jsonl"
        try:
            with metrics.open("ab") as file:
                os.fsync(file.fileno())
                size = file.tell()
        except OSError as error:
            raise cannot_write(metrics, error) from None
        save_checkpoint(self.checkpoint_path, {**state, "metrics_bytes": size})

    def truncate(self, size: int) -> None:
        """Forget metrics that came after the checkpoint: those steps will be done again."""
        path = self.path / "metrics.jsonl"
        try:
            with path.open("a+b") as file:
                if file.seek(0, os.SEEK_END) < size:
                    raise InputError(
                        f"{path}: lines are missing that the checkpoint counts on; start over with --fresh"
                    )
                file.seek(0)
                for number, line in enumerate(file.read(size).splitlines(), 1):
                    if not _is_object(line):
                        raise InputError(
                            f"{path}:{number}: is no line of metrics; restore the file, or start over with --fresh"
                        )
                file.truncate(size)
        except OSError as error:
            raise cannot_write(path, error) from None

    def record(self, values: Mapping[str, Any]) -> None:
        try:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise cannot_write(self.path / "metrics.jsonl", error) from None

    def note(self, name: str, value: Any) -> None:
        """Add to run.json what is not known before the end."""
        path = self.path / "run.json"
        write_json(path, read_json(path) | {name: value})

    def save_weights(self, weights: dict[str, Tensor]) -> None:
        save_weights(self.path / "weights.safetensors", weights)

    def finish(self, result: Mapping[str, Any]) -> None:
        write_json(self.path / "result.json", result)
        self.checkpoint_path.unlink(missing_ok=True)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _completed(config: Any) -> Any:
    """A stored configuration, with the defaults of settings that came after it."""
    try:
        return comparable(loads(yaml.safe_dump(config)))
    except (InputError, RecursionError, yaml.YAMLError):  # none that this version can read
        return config


def comparable(config: Config) -> dict[str, Any]:
    """What makes two runs the same: everything but where the folder is and what it is compared with."""
    plain: dict[str, Any] = to_dict(config)
    del plain["output"], plain["compare"], plain["data"]["cache"]
    return plain


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """In words, which settings differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        missing = "nothing"
        return [
            text
            for key in keys
            for text in differences(old.get(key, missing), new.get(key, missing), f"{path}.{key}" if path else key)
        ]
    return [] if old == new else [f"{path}: {old!r:.100} there, {new!r:.100} here"]
