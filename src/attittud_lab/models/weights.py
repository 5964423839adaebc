"""Weights of networks in files: how they are written, read, and taken over by a new run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from attittud_lab.errors import InputError, one_line
from attittud_lab.files import local, write_atomically


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors, by name, as a safetensors file."""
    tensors = {}
    for name, tensor in weights.items():
        # A copy: safetensors refuses tensors that share memory.
        tensors[name] = tensor.detach().to("cpu", copy=True).contiguous()
    write_atomically(path, save(tensors))


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file on the CPU."""
    try:
        if not path.is_file():  # a device or a pipe may never end
            raise OSError("there is no such file")
        return load(path.read_bytes())
    # The last three: types of tensors that torch does not have.
    except (OSError, SafetensorError, LookupError, RuntimeError, ValueError) as error:
        problem = f"{path}: cannot read these weights ({one_line(error)})"
        raise InputError(f"{problem}; give a weights.safetensors of a run") from None


def load_body(network: nn.Module, path: str) -> None:
    """Start from the weights of an earlier run: the body, and heads of auxiliary sources that it
    had under the same name.

    The primary head stays as it is, and so does a head of another shape. A body with other tensors
    or shapes is refused.
    """
    stored = load_weights(local(path))
    initial = network.state_dict()
    for name in sorted(initial.keys() | stored.keys()):
        shape = _shape(stored, name)
        needed = _shape(initial, name)
        if shape != needed and name.startswith("body."):
            problem = f"model.weights: {path} has {shape} for {name!r}, this model needs {needed}"
            raise InputError(f"{problem}; use the model of that run")
        is_auxiliary_head = name.startswith("heads.") and not name.startswith("heads.primary.")
        is_taken_over = name.startswith("body.") or is_auxiliary_head
        if shape != needed or not is_taken_over:
            stored.pop(name, None)
    network.load_state_dict(stored, strict=False)


def _shape(tensors: Mapping[str, Tensor], name: str) -> tuple[int, ...] | str:
    """Return the shape of a tensor, and `nothing` where there is none, for messages."""
    if name in tensors:
        return tuple(tensors[name].shape)
    return "nothing"


def predicts(name: str) -> bool:
    """Whether a tensor of this name takes part in predictions: all but the heads of auxiliary
    tasks.
    """
    return not name.startswith("heads.") or name.startswith("heads.primary.")


@contextmanager
def tensors_alone() -> Iterator[None]:
    """Let `torch.load` unpickle only tensors inside the block, whatever the calling library asks
    for.
    """
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before
