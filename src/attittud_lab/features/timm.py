"""`timm:NAME`: a frozen image network of the package timm, with the size and colours that it was
trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from attittud_lab.errors import InputError, one_line, optional
from attittud_lab.features.base import FeatureMap, Plain
from attittud_lab.features.images import Preparation, cannot_encode, encode_images, frozen
from attittud_lab.features.weights import check_same
from attittud_lab.models.network import tensors_alone
from attittud_lab.output.progress import Progress


class TimmFeatures(FeatureMap):
    """The numbers before the classifier of a timm network."""

    name = "timm"
    reads = "image"
    worth_keeping = True

    def __init__(self, network_name: str) -> None:
        self._network_name = network_name
        self._device = "cpu"

    def to(self, device: str) -> None:
        self._device = device

    @cached_property
    def _network(self) -> Any:
        name = f"timm:{self._network_name}"
        try:
            timm = optional("timm", "timm", f"features {name!r}")
        except RuntimeError as error:  # raised by a torchvision that was built for another torch
            problem = f"features {name!r}: timm cannot be imported ({one_line(error, 200)})"
            cure = "install the torchvision that belongs to this torch"
            raise InputError(f"{problem}; {cure}") from None
        try:
            with tensors_alone():
                return timm.create_model(self._network_name, pretrained=True, num_classes=0)
        except Exception as error:  # unknown name, no network, a bad file: timm has no common error
            reason = one_line(error, 200)
            cure = "check the name, and that its weights are in the cache or can be fetched"
            raise InputError(f"features {name!r} cannot be built ({reason}); {cure}") from None

    @property
    def network(self) -> Any:
        return self._network

    def transform(self, inputs: Any, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        network = frozen(self._network, self._device)
        try:
            preparation = self._preparation()
            return encode_images(network, inputs, preparation, self._device, progress)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise cannot_encode(f"timm:{self._network_name}", error) from None

    def _preparation(self) -> Preparation:
        settings = self._network.pretrained_cfg
        red, green, blue = (255 * float(value) for value in settings["mean"])
        red_scale, green_scale, blue_scale = (255 * float(value) for value in settings["std"])
        size = int(settings["input_size"][-1])
        return Preparation(size, (red, green, blue), (red_scale, green_scale, blue_scale))

    def plain(self) -> Plain:
        return {"network": self._network_name, "sha256": self._sha256}

    @cached_property
    def _sha256(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in self._network.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @classmethod
    def restore(cls, plain: Mapping[str, Any], _: Mapping[str, Tensor]) -> Self:
        feature_map = cls(str(plain["network"]))
        check_same(f"timm:{plain['network']}", plain, feature_map.plain())
        return feature_map
