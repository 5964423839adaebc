"""Random changes of training images, so that a network does not learn single pixels by heart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FARTHEST = 8
"""An image is shifted by at most this fraction of its height and width: an eighth."""


def augmented(images: Tensor, kinds: Sequence[str]) -> Tensor:
    """Return changed images (n x C x H x W): each is mirrored with probability 1/2 if `kinds` has
    "flip", and moved by a random number of pixels if it has "shift".

    The draws come from torch's random numbers of the device, which a step seeds.
    """
    if "flip" in kinds:
        mirrored = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
        images = torch.where(mirrored, images.flip(3), images)
    if "shift" in kinds:
        images = _shifted(_shifted(images, 2), 3)
    return images


def _shifted(images: Tensor, dimension: int) -> Tensor:
    """Move each image by its own number of pixels; pixels at the border are repeated."""
    size = images.shape[dimension]
    farthest = size // FARTHEST
    draws = torch.randint(-farthest, farthest + 1, (len(images), 1), device=images.device)
    positions = torch.arange(size, device=images.device) + draws
    shape = [len(images), 1, 1, 1]
    shape[dimension] = size
    index = positions.clamp(0, size - 1).view(shape)
    return images.gather(dimension, index.expand_as(images))
