"""A network: a shared body with one head per task. `build.py` makes it from a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attittud_lab.models.text import MaskedHead, TextBody, hide, masked_losses


class Network(nn.Module):
    """`model(inputs, head="primary")`; images come as uint8, texts as token numbers, tables as
    features.

    The body is a module with a number of `features`, which is passed in for a body of another
    library. A head without a number of outputs predicts masked words.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        body: nn.Module,
        heads: Mapping[str, int | None],
        *,
        features: int | None = None,
        normalise: tuple[Tensor, Tensor] | None = None,
        head_init: Literal["default", "kaiming", "zero"] = "default",
        size: int | None = None,
    ) -> None:
        """Build the heads, whose numbers of outputs are given by name (None: it predicts words).

        `normalise` has the mean and the standard deviation of pixels in [0, 1]; None for other data
        than images. Images are scaled to `size` pixels, if it is given.
        """
        super().__init__()
        self.body = body
        self.head_init = head_init
        self.images = normalise is not None
        self.size = size
        width: Any = features or body.features
        self.heads = nn.ModuleDict()
        for name, count in heads.items():
            layer = nn.Linear(width, count) if count else _masked_head(body, width)
            self.heads[_head_key(name)] = layer
        for head in self.heads.values():
            if isinstance(head, nn.Linear):
                self.reset_head(head)
        mean, std = normalise or (torch.zeros(1), torch.ones(1))
        # Stored in the weights file, which then says how images have to be prepared.
        self.register_buffer("mean", mean.view(1, -1, 1, 1))
        self.register_buffer("std", std.view(1, -1, 1, 1))

    def reset_head(self, head: nn.Linear) -> None:
        """Draw the weights of a head again, in the way that `head_init` says."""
        head.reset_parameters()
        if self.head_init == "kaiming":
            nn.init.kaiming_normal_(head.weight, mode="fan_out")
            nn.init.zeros_(head.bias)
        elif self.head_init == "zero":
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

    def forward(self, inputs: Tensor, head: str, detach: bool = False) -> Tensor:
        """Return n x classes of a head; with `detach` no gradient reaches the body."""
        if self.images:
            inputs = scaled((inputs.float() / 255 - self.mean) / self.std, self.size)
        features = self.body(inputs)
        if detach:
            features = features.detach()
        outputs: Tensor = self.heads[_head_key(head)](features)
        return outputs

    def masked_losses(self, inputs: Tensor, head: str) -> Tensor:
        """Per-example loss of predicting hidden words; each call draws which ones are hidden."""
        body = cast(TextBody, self.body)
        layer = cast(MaskedHead, self.heads[_head_key(head)])
        return masked_losses(body, layer, hide(inputs, body))


_RESERVED = frozenset(dir(nn.ModuleDict()))


def _head_key(name: str) -> str:
    """Return the name of a head as a key of a ModuleDict, which refuses names of its own
    attributes, such as `train`.
    """
    if name in _RESERVED:
        return f"{name}@"  # no source can have a name with this sign
    return name


def scaled(images: Tensor, size: int | None) -> Tensor:
    """Return images (n x C x H x W) of this height and width; None leaves them as they are."""
    if size is None or images.shape[2:] == (size, size):
        return images
    return F.interpolate(images, (size, size), mode="bilinear", antialias=size < images.shape[-1])


def _masked_head(body: nn.Module, features: int) -> MaskedHead:
    """A new head for masked words, or the head that came with the body."""
    head = MaskedHead(features, cast(TextBody, body).table, getattr(body, "eps", 1e-5))
    stored = getattr(body, "stored_head", {})
    if stored:
        head.load_state_dict(stored)
    return head


def statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each channel of uint8 images, in [0, 1].

    The deviation is at least 0.01, because images are divided by it.
    """
    count = images.numel() / images.shape[1]
    total, square = torch.zeros(2, images.shape[1], dtype=torch.float64, device=images.device)
    for chunk in images.split(1024):
        values = chunk.double() / 255
        total += values.sum((0, 2, 3))
        square += values.square().sum((0, 2, 3))
    mean = total / count
    std = (square / count - mean.square()).clamp(min=0).sqrt()
    return mean.float().cpu(), std.clamp(min=math.sqrt(1e-4)).float().cpu()
