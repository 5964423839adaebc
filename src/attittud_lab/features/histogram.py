"""Images as histograms of gradients and colours, without any trained weights.

Dalal and Triggs 2005, in short. At each pixel the colour with the steepest gradient counts. Its
direction, from 0 to 180 degrees, is divided between the two nearest of `DIRECTIONS` bins, with the
length of the gradient as weight, and bins are added up in square cells. Blocks of 2 x 2
neighbouring cells are divided by their length, cut at 0.2 and divided again, so contrast and
lighting do not matter. Colours are the share of the pixels of each quarter of the image in each of
4 x 4 x 4 colours. Square roots make both kinds of shares comparable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from attittud_lab.data.images import Pixels, decode_all
from attittud_lab.errors import InputError
from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.features.frozen import WHERE
from attittud_lab.output.progress import Progress

SIZE = 64
"""Pixels of a side to which images are scaled."""
CELL = 8
"""Pixels of the side of a cell. Of sizes from 16 to 64 with cells of 4 or 8, these were the best by
a little.
"""
DIRECTIONS = 9
LEVELS = 4
"""Levels of each of the three colours."""
QUARTERS = 2
"""Parts of each side of the image."""
_CUT = 0.2  # the largest number of a block that was divided by its length
_BATCH = 256


class HistogramFeatures(FeatureMap):
    """Histograms of gradients in cells, and of colours in quarters of an image."""

    name = "histogram"
    reads = "image"
    worth_keeping = True

    def transform(self, inputs: Any, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Return the histograms of images, n x `_width()`: gradients, then colours."""
        rows = [np.empty((0, _width()), dtype=np.float32)]
        for start in range(0, len(inputs), _BATCH):
            pixels = decode_all(inputs[start : start + _BATCH], Pixels(3, SIZE), WHERE)
            features = torch.cat([gradients(pixels), colours(pixels)], 1)
            rows.append(features.numpy())
            if progress is not None:
                progress.advance(len(pixels), {})
        return np.concatenate(rows)

    def plain(self) -> Plain:
        return {"size": SIZE, "cell": CELL, "directions": DIRECTIONS, "levels": LEVELS}

    @classmethod
    def restore(cls, plain: Mapping[str, Any], _: Mapping[str, Tensor]) -> Self:
        feature_map = cls()
        if feature_map.plain() != dict(plain):
            problem = f"features 'histogram': stored with {dict(plain)}, now {feature_map.plain()}"
            raise InputError(f"{problem}; train again with this version")
        return feature_map


def gradients(pixels: Tensor) -> Tensor:
    """Return histograms of gradients in blocks of cells, n x (4 * directions * blocks), from pixels
    n x 3 x H x W in uint8.
    """
    values = pixels.float() / 255
    padded = F.pad(values, (1, 1, 1, 1), mode="replicate")
    across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    # The colour with the steepest gradient, at each pixel.
    steepest = (across.square() + down.square()).argmax(1, keepdim=True)
    across = across.gather(1, steepest).squeeze(1)
    down = down.gather(1, steepest).squeeze(1)
    length = torch.hypot(across, down)
    # Directions count from 0 to DIRECTIONS. The length is divided between the two nearest bins: one
    # at direction 2.3 goes to bin 2 with share 0.7, and to bin 3 with share 0.3.
    direction = torch.atan2(down, across).remainder(math.pi) / math.pi * DIRECTIONS
    lower = direction.floor()
    share_of_upper = direction - lower
    lower_bin = lower.long() % DIRECTIONS
    upper_bin = (lower_bin + 1) % DIRECTIONS
    bins = torch.zeros(len(pixels), DIRECTIONS, *length.shape[1:])
    bins.scatter_add_(1, lower_bin.unsqueeze(1), (length * (1 - share_of_upper)).unsqueeze(1))
    bins.scatter_add_(1, upper_bin.unsqueeze(1), (length * share_of_upper).unsqueeze(1))
    cells = F.avg_pool2d(bins, CELL)
    # n x (directions * 4) x blocks: every 2 x 2 cells, which overlap.
    blocks = F.unfold(cells, kernel_size=2)
    blocks = F.normalize(blocks, dim=1, eps=1e-2).clamp(max=_CUT)
    blocks = F.normalize(blocks, dim=1, eps=1e-2)
    # Every block has at most length 1, and so has a row.
    return blocks.flatten(1) / math.sqrt(blocks.shape[2])


def colours(pixels: Tensor) -> Tensor:
    """Return the roots of the shares of colours in each quarter of an image,
    n x (quarters ** 2 * levels ** 3), from pixels n x 3 x H x W in uint8.
    """
    # A colour is the number with the digits red, green, blue in base LEVELS.
    level = pixels.long() * LEVELS // 256
    colour = (level[:, 0] * LEVELS + level[:, 1]) * LEVELS + level[:, 2]
    side = pixels.shape[2] // QUARTERS
    squares = colour.unfold(1, side, side).unfold(2, side, side)
    quarters = squares.reshape(len(pixels), QUARTERS**2, -1)
    counts = torch.zeros(len(pixels), QUARTERS**2, LEVELS**3)
    counts.scatter_add_(2, quarters, torch.ones(quarters.shape))
    return (counts / counts.sum((1, 2), keepdim=True)).sqrt().flatten(1)


def _width() -> int:
    """Return the numbers of an image: blocks of gradients, then colours of quarters."""
    blocks = (SIZE // CELL - 1) ** 2
    return blocks * 4 * DIRECTIONS + QUARTERS**2 * LEVELS**3
