"""A shared body with one linear head per task; the preparation of raw inputs is part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Protocol, cast

import torch
from torch import Tensor, nn

from attittud_lab.models.masked import MaskedHead, TextBody, hide, masked_losses

HeadInit = Literal["default", "kaiming", "zero"]


class Body(Protocol):
    """What a body offers beside being a module: `forward` gives n x features."""

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
        """Initialise a head anew."""
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
        """Per-example loss of predicting hidden words; which ones are hidden is drawn anew in each call."""
        body = cast(TextBody, self.body)
        return masked_losses(body, cast(MaskedHead, self.heads[head]), hide(inputs, body))


def _masked_head(body: nn.Module) -> MaskedHead:
    """A fresh one, or the one that came with the body."""
    head = MaskedHead(cast(TextBody, body).features, cast(TextBody, body).table, getattr(body, "eps", 1e-5))
    stored = getattr(body, "stored_head", {})
    if stored:
        head.load_state_dict(stored)
    return head


def kaiming_convolutions(module: nn.Module) -> None:
    """Kaiming-normal, fan-out, as the residual networks' papers have it."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


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
