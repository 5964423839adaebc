"""All that an interrupted run needs to go on as if nothing had happened, in one safetensors file.

No pickle: tensors are tensors, everything else is JSON in the file's header, with a checksum over both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from attittud_lab.errors import InputError, one_line
from attittud_lab.files import write_atomically

_TENSOR = "$tensor"


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write nested mappings and lists of tensors, numbers, texts and None."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_flatten(state, "", tensors))
    write_atomically(path, save(tensors, {"state": text, "sha256": _checksum(text, tensors)}))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read it back, on the CPU; a file that is damaged or none of ours is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            # Copies, aligned as torch aligns its own: a dot product where they lie in the file may add up in another
            # order (MKL on AMD's processors), and the run would go on with other last digits.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a mapping
        text = metadata["state"]
        if metadata["sha256"] != _checksum(text, tensors):
            raise ValueError("its checksum is wrong")
        state: dict[str, Any] = _unflatten(json.loads(text), tensors)
        if not isinstance(state, dict):
            raise ValueError("it is no mapping")
    except (SafetensorError, OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: the checkpoint is damaged ({type(error).__name__}: {one_line(error)}); delete this file to "
            "start the run from its beginning, or restore it from a backup"
        ) from None
    return state


def check_like(value: Any, like: Any, name: str) -> None:
    """Raise ValueError unless a value has the keys, shapes and types of another one."""
    if isinstance(like, Mapping):
        if not isinstance(value, Mapping) or value.keys() != like.keys():
            raise ValueError(f"{name} has other entries than this run")
        for key, item in like.items():
            check_like(value[key], item, f"{name}/{key}")
    elif not isinstance(value, Tensor) or (value.shape, value.dtype) != (like.shape, like.dtype):
        raise ValueError(f"{name} is no tensor of shape {tuple(like.shape)} and type {like.dtype}")


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # A copy: safetensors refuses tensors that share memory, and tied weights do.
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        # JSON has no whole numbers as keys, optimizers do.
        keys = [[key, _flatten(item, f"{name}/{key}", tensors)] for key, item in value.items()]
        return {"$mapping": keys}
    if isinstance(value, (list, tuple)):
        return [_flatten(item, f"{name}/{position}", tensors) for position, item in enumerate(value)]
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
