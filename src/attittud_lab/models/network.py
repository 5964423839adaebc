"""A shared body with one linear head per task, its parameters by name, and its weights in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Protocol, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from attittud_lab.errors import InputError, one_line
from attittud_lab.files import write_atomically
from attittud_lab.models.text import MaskedHead, TextBody, hide, masked_losses

HeadInit = Literal["default", "kaiming", "zero"]


class Body(Protocol):
    """A module whose `forward` gives n x features."""

    features: int


class Network(nn.Module):
    """`model(inputs, head="primary")`; images come as uint8, texts as token numbers.

    A head without a number of outputs names masked words.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        body: nn.Module,
        heads: Mapping[str, int | None],
        *,
        normalise: tuple[Tensor, Tensor] | None = None,
        head_init: HeadInit = "default",
    ) -> None:
        super().__init__()
        self.body = body
        features = cast(Body, body).features
        self.heads = nn.ModuleDict(
            {
                name: _masked_head(body) if outputs is None else nn.Linear(features, outputs)
                for name, outputs in heads.items()
            }
        )
        self.head_init: HeadInit = head_init
        for head in self.heads.values():
            if isinstance(head, nn.Linear):
                self.reset_head(head)
        self.images = normalise is not None
        mean, std = normalise if normalise is not None else (torch.zeros(1), torch.ones(1))
        # In the weights file, so that it says by itself how images have to be prepared.
        self.register_buffer("mean", mean.view(1, -1, 1, 1))
        self.register_buffer("std", std.view(1, -1, 1, 1))

    def reset_head(self, head: nn.Linear) -> None:
        """Initialise a head again."""
        head.reset_parameters()
        if self.head_init == "kaiming":
            nn.init.kaiming_normal_(head.weight, mode="fan_out")
            nn.init.zeros_(head.bias)
        elif self.head_init == "zero":
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, inputs: Tensor, head: str, detach: bool = False) -> Tensor:
        if self.images:
            inputs = (inputs.float() / 255 - self.mean) / self.std
        features = self.body(inputs)
        if detach:
            features = features.detach()
        outputs: Tensor = self.heads[head](features)
        return outputs

    def masked_losses(self, inputs: Tensor, head: str) -> Tensor:
        """Per-example loss of predicting hidden words; each call draws which ones are hidden."""
        body = cast(TextBody, self.body)
        return masked_losses(body, cast(MaskedHead, self.heads[head]), hide(inputs, body))


def _masked_head(body: nn.Module) -> MaskedHead:
    """A fresh one, or the one that came with the body."""
    head = MaskedHead(cast(TextBody, body).features, cast(TextBody, body).table, getattr(body, "eps", 1e-5))
    stored = getattr(body, "stored_head", {})
    if stored:
        head.load_state_dict(stored)
    return head


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel of uint8 images, in [0, 1]."""
    count = images.numel() / images.shape[1]
    total, square = torch.zeros(2, images.shape[1], dtype=torch.float64, device=images.device)
    for chunk in images.split(1024):
        values = chunk.double() / 255
        total += values.sum((0, 2, 3))
        square += values.square().sum((0, 2, 3))
    mean = total / count
    std = (square / count - mean.square()).clamp(min=0).sqrt()
    return mean.float().cpu(), std.clamp(min=math.sqrt(1e-4)).float().cpu()


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def matching(model: nn.Module, patterns: Sequence[str], where: str) -> list[nn.Parameter]:
    """The parameters that a pattern fits; each pattern has to fit one."""
    named = dict(model.named_parameters())
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            raise InputError(
                f"{where}: no parameter has a name like {pattern!r}; * stands for anything. Names are such as "
                f"{', '.join(list(named)[:3])}"
            )
    return [parameter for name, parameter in named.items() if matches(name, patterns)]


def check_shared(model: nn.Module, exclude: Sequence[str], *, head: bool) -> None:
    """Refuse strategies without anything to work on. `head`: some auxiliary source shares the primary head."""
    shared = ("body.", "heads.primary.") if head else ("body.",)
    if not any(
        parameter.requires_grad and name.startswith(shared) and not matches(name, exclude)
        for name, parameter in model.named_parameters()
    ):
        raise InputError(
            "model.freeze and strategy.exclude leave no parameter that is trained and that the tasks share, so there is nothing "
            "to decompose or to combine; freeze less, or use strategy: multitask or pretrain"
        )


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in weights.items()}
    write_atomically(path, save(tensors))


def load_weights(path: Path) -> dict[str, Tensor]:
    try:
        if not path.is_file():  # a device or a pipe may never end
            raise OSError("there is no such file")
        return load(path.read_bytes())
    except (OSError, SafetensorError, LookupError, RuntimeError, ValueError) as error:  # types that torch does not have
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
