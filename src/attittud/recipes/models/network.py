"""A shared body with one linear head per task; the preparation of raw inputs is part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HeadInit = Literal["default", "kaiming", "zero"]


class Body(Protocol):
    """What a body offers beside being a module: `forward` gives n x features."""

    features: int


class TextBody(Body, Protocol):
    """A body for token numbers (n x L, `pad` where there is none), which can also give one vector per token."""

    vocabulary: int
    pad: int
    mask: int
    special: tuple[int, ...]
    """Token numbers that are never masked."""

    def tokens(self, inputs: Tensor) -> Tensor:
        """n x L x features."""


class Network(nn.Module):
    """`model(inputs, head="primary")`; images come as uint8, texts as token numbers."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        body: nn.Module,
        heads: Mapping[str, int],
        *,
        normalise: tuple[Tensor, Tensor] | None = None,
        head_init: HeadInit = "default",
    ) -> None:
        super().__init__()
        self.body = body
        features = cast(Body, body).features
        self.heads = nn.ModuleDict({name: nn.Linear(features, outputs) for name, outputs in heads.items()})
        self.head_init: HeadInit = head_init
        for head in self.heads.values():
            self.reset_head(cast(nn.Linear, head))
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
        """Per-example loss of predicting 15 % of the tokens: of these 80 % are masked, 10 % replaced, 10 % left (BERT)."""
        body = cast(TextBody, self.body)
        eligible = inputs != body.pad
        for token in body.special:
            eligible = eligible & (inputs != token)
        draw, kind = torch.rand_like(inputs, dtype=torch.float32), torch.rand_like(inputs, dtype=torch.float32)
        chosen = eligible & (draw < 0.15)
        hidden = torch.where(chosen & (kind < 0.8), body.mask, inputs)
        random = torch.randint_like(inputs, body.vocabulary)
        hidden = torch.where(chosen & (kind >= 0.8) & (kind < 0.9), random, hidden)
        # The head has as many outputs as there are words: it is asked at no more places than needed, but at as many in every
        # row, as a number that depends on the draw would have to be waited for.
        places = torch.where(chosen, draw, 2.0).topk(_most_masked(inputs.shape[1]), largest=False).indices
        states = body.tokens(hidden)
        states = states.gather(1, places.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        outputs, asked = self.heads[head](states), chosen.gather(1, places)
        wanted = inputs.gather(1, places).flatten().long()
        losses = F.cross_entropy(outputs.flatten(0, 1).float(), wanted, reduction="none").view_as(places) * asked
        # Over the batch, so that the mean over examples is the mean over masked tokens as everybody reports it.
        return losses.sum(1) * (inputs.shape[0] / asked.sum().clamp(min=1))


def _most_masked(length: int) -> int:
    """Of so many tokens at 15 %, four standard deviations above the mean: 3 rows in 100,000 have more, and lose the rest."""
    return min(length, math.ceil(0.15 * length + 4 * math.sqrt(0.15 * 0.85 * length)))


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
