"""Frozen image networks in general: decode, scale and normalise images, and run them through a
network in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attittud_lab.data.images import Pixels, decode_all
from attittud_lab.errors import InputError, one_line
from attittud_lab.output.progress import Progress

ON_CPU = 16
"""Images of a batch: more do not stay in the caches of a core, and take longer."""
ON_GPU = 256
WHERE = "features of images"
"""Begins messages about an image that cannot be read."""


@dataclass(frozen=True)
class Preparation:
    """What a network was trained on: square images of `size` pixels, (pixel - mean) / scale for
    each colour.
    """

    size: int
    mean: tuple[float, float, float]
    """In pixels from 0 to 255, as `scale`."""
    scale: tuple[float, float, float]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return n x 3 x size x size as float32 from uint8."""
        mean = torch.tensor(self.mean, device=pixels.device).view(3, 1, 1)
        scale = torch.tensor(self.scale, device=pixels.device).view(3, 1, 1)
        return (pixels.float() - mean) / scale


def encode_images(
    network: Callable[[Tensor], Tensor],
    inputs: Sequence[Any],
    preparation: Preparation,
    device: str,
    progress: Progress | None,
) -> npt.NDArray[np.float32]:
    """Return n x width: what `network` makes of each image. Memory holds the pixels of one
    batch.
    """
    batch = ON_CPU if device == "cpu" else ON_GPU
    shape = Pixels(3, preparation.size)
    rows = []
    for start in range(0, len(inputs), batch):
        pixels = decode_all(inputs[start : start + batch], shape, WHERE).to(device)
        # Channels last: on a CPU convolutions are faster by a third.
        prepared = preparation(pixels).contiguous(memory_format=torch.channels_last)
        with torch.inference_mode():
            features = network(prepared)
        rows.append(features.float().cpu().numpy())
        if progress is not None:
            progress.advance(len(pixels), {})
    if not rows:
        blank = torch.zeros(1, 3, preparation.size, preparation.size, device=device)
        with torch.inference_mode():
            return np.empty((0, network(blank).shape[1]), dtype=np.float32)
    return np.concatenate(rows)


def frozen(network: Any, device: str) -> Any:
    """Return a torch module ready for inference on a device."""
    network = network.eval().requires_grad_(False)
    return network.to(device=device, memory_format=torch.channels_last)


def cannot_encode(name: str, error: Exception) -> InputError:
    """The error for a network that refuses images of the size that its own settings name."""
    reason = one_line(error, 200)
    cure = "choose another network with features:, or leave features: out"
    return InputError(f"features {name!r}: the network does not read these data ({reason}); {cure}")
