"""Images by a frozen EfficientNet-Lite0, trained on ImageNet, whose weights come with a package.

A feature is the mean of one of the last 1,280 maps over all positions.
"""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from attittud_lab.features.base import Plain
from attittud_lab.features.frozen import (
    FrozenFeatures,
    Preparation,
    checksum,
    encode_images,
    ready,
)
from attittud_lab.models.efficientnet import CENTRE, PACKAGE, SCALE, load_network, weights_file
from attittud_lab.output.progress import Progress

SIZE = 128
"""Pixels. The network was trained at 224, which takes three times as long."""
_WHAT = "features 'efficientnet'"


class EfficientNetFeatures(FrozenFeatures):
    """The 1,280 numbers before the classifier of EfficientNet-Lite0."""

    name = "efficientnet"
    reads = "image"

    def transform(self, inputs: Any, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Return n x 1,280 for images."""
        network = ready(self.network, self.device)

        def mean_of_maps(images: Tensor) -> Tensor:
            maps: Tensor = network.extract_features(images)
            return maps.mean((2, 3))

        preparation = Preparation(SIZE, (CENTRE,) * 3, (SCALE,) * 3)
        return encode_images(mean_of_maps, inputs, preparation, self.device, progress)

    def load(self) -> Any:
        return load_network(_WHAT)

    def settings(self) -> Plain:
        return {"package": PACKAGE, "version": version(PACKAGE), "size": SIZE}

    @cached_property
    def sha256(self) -> str:
        return checksum([weights_file(_WHAT)])
