"""Frozen networks as features: what all of them share, and how images are prepared and encoded."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attittud_lab.data.images import Pixels, decode_all
from attittud_lab.errors import InputError, one_line
from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.output.progress import Progress

ON_CPU = 16
"""Images of a batch: more do not stay in the caches of a core, and take longer."""
ON_GPU = 256
WHERE = "features of images"
"""Begins messages about an image that cannot be read."""
_BLOCK = 1 << 22  # bytes of a file that are read at once
_MAY_DIFFER = (
    "version",
    "precision",
)  # entries of `plain` that a restored map may have other values of


class FrozenFeatures(FeatureMap):
    """What a network makes of examples. A model that was fitted on its features needs the same
    weights again, so `plain` has their checksum.
    """

    worth_keeping = True
    arguments: ClassVar[tuple[str, ...]] = ()
    """The entries of `stored` that the constructor gets. The first one is a part of the name."""
    device = "cpu"

    def to(self, device: str) -> None:
        self.device = device

    @cached_property
    def network(self) -> Any:
        """The network, which is loaded when it is first needed."""
        return self.load()

    @abstractmethod
    def load(self) -> Any:
        """Return the network."""

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Return a checksum of everything that decides the features."""

    @abstractmethod
    def settings(self) -> Plain:
        """Return what `plain` has besides the checksum."""

    def plain(self) -> Plain:
        return self.settings() | {"sha256": self.sha256}

    @classmethod
    def restore(cls, plain: Mapping[str, Any], _: Mapping[str, Tensor]) -> Self:
        """Return the same map; refuses an encoder that differs in more than the version of its
        package and the precision.
        """
        arguments = [str(plain[name]) for name in cls.arguments if name in plain]
        name = ":".join([cls.name, *arguments[:1]])
        feature_map = cls(*arguments)
        for key, value in feature_map.plain().items():
            if key not in _MAY_DIFFER and plain.get(key) != value:
                problem = f"features {name!r}: the encoder is not the one of the training ({key})"
                if "place" in plain:
                    place = feature_map.stored().get("place", "the cache of the hub")
                    problem += f": that was in {plain['place']}, this is in {place}"
                needed = "the same files"
                if "version" in plain:
                    needed = f"version {plain['version']}"
                raise InputError(f"{problem}; install {needed}, or train again")
        return feature_map


def checksum(paths: Iterable[Path]) -> str:
    """Return one SHA-256 of the names and the contents of some files."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        try:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        except OSError as error:
            problem = f"{path}: cannot be read ({one_line(error, 200)})"
            raise InputError(f"{problem}; install the encoder again") from None
    return digest.hexdigest()


@dataclass(frozen=True)
class Preparation:
    """What a network was trained on: square images of `size` pixels, (pixel - mean) / scale for
    each colour.
    """

    size: int
    mean: tuple[float, ...]
    """In pixels from 0 to 255, as `scale`."""
    scale: tuple[float, ...]

    @classmethod
    def of_fractions(cls, size: Any, mean: Iterable[Any], scale: Iterable[Any]) -> Preparation:
        """Make one of a mean and a scale of pixels from 0 to 1."""
        means = tuple(255 * float(value) for value in mean)
        scales = tuple(255 * float(value) for value in scale)
        if len(means) != 3 or len(scales) != 3:
            raise ValueError("three colours have three means and three deviations")
        return cls(int(size), means, scales)

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
    if not rows:  # the network is asked how wide a row is
        blank = torch.zeros(1, 3, preparation.size, preparation.size, device=device)
        with torch.inference_mode():
            return np.empty((0, network(blank).shape[1]), dtype=np.float32)
    return np.concatenate(rows)


def ready(network: Any, device: str) -> Any:
    """Return a torch module ready for inference on a device."""
    network = network.eval().requires_grad_(False)
    return network.to(device=device, memory_format=torch.channels_last)


def cannot_encode(name: str, error: Exception) -> InputError:
    """Return the error for a network that refuses images of the size that its own settings name."""
    problem = f"features {name!r}: the network does not read these data ({one_line(error, 200)})"
    return InputError(f"{problem}; choose other features")
