"""Images by a frozen EfficientNet-Lite0, trained on ImageNet, whose weights come with a package.

A feature is the mean of one of the last 1,280 maps over all positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import version
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.features.images import Preparation, encode_images, frozen
from attittud_lab.features.weights import check_same, checksum
from attittud_lab.models.efficientnet import (
    CENTRE,
    PACKAGE,
    SCALE,
    load_network,
    weights_file,
)
from attittud_lab.output.progress import Progress

SIZE = 128
"""Pixels. The network was trained at 224, which takes three times as long."""
_WHAT = "features 'efficientnet'"


class EfficientNetFeatures(FeatureMap):
    """The 1,280 numbers before the classifier of EfficientNet-Lite0."""

    name = "efficientnet"
    reads = "image"
    worth_keeping = True

    def __init__(self) -> None:
        self._device = "cpu"

    def to(self, device: str) -> None:
        self._device = device

    @property
    def network(self) -> Any:
        return self._network

    def transform(self, inputs: Any, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        network = frozen(self._network, self._device)

        def mean_of_maps(images: Tensor) -> Tensor:
            maps: Tensor = network.extract_features(images)
            return maps.mean((2, 3))

        preparation = Preparation(SIZE, (CENTRE,) * 3, (SCALE,) * 3)
        return encode_images(mean_of_maps, inputs, preparation, self._device, progress)

    @cached_property
    def _network(self) -> Any:
        return load_network(_WHAT)

    def plain(self) -> Plain:
        return {
            "package": PACKAGE,
            "version": version(PACKAGE),
            "size": SIZE,
            "sha256": self._sha256,
        }

    @cached_property
    def _sha256(self) -> str:
        return checksum([weights_file(_WHAT)])

    @classmethod
    def restore(cls, plain: Mapping[str, Any], _: Mapping[str, Tensor]) -> Self:
        feature_map = cls()
        check_same(cls.name, plain, feature_map.plain())
        return feature_map
