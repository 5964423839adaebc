"""The trained network as a safetensors file, and the body of an earlier one as a start."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from attittud_lab.errors import InputError, one_line
from attittud_lab.files import write_atomically


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights.items()}
    write_atomically(path, save(tensors))


def load_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{path}: cannot read these weights ({one_line(error)}); give a weights.safetensors of a run"
        ) from None


def load_body(network: nn.Module, path: str) -> None:
    """Start from the weights of an earlier run: the body, and heads of auxiliary sources that it had under the same name.

    The primary head stays as it is, and so does a head of another shape.
    """
    stored = load_weights(Path(path))
    weights = {name: tensor for name, tensor in stored.items() if name.startswith("body.")}
    own = {name: tensor for name, tensor in network.state_dict().items() if name.startswith("body.")}
    for name in own.keys() | weights.keys():
        shapes = [tuple(side[name].shape) if name in side else "nothing" for side in (weights, own)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"model.weights: {path} has {shapes[0]} for {name!r}, this model needs {shapes[1]}; use the model of that run"
            )
    heads = {
        name: stored[name]
        for name, tensor in network.state_dict().items()
        if name.startswith("heads.") and not name.startswith("heads.primary.")
        if name in stored and stored[name].shape == tensor.shape
    }
    network.load_state_dict(weights | heads, strict=False)
