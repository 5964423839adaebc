"""`timm:NAME`: a frozen image network of the package timm, with the size and colours that it was
trained on.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attittud_lab.errors import InputError, one_line, optional
from attittud_lab.features.base import Plain
from attittud_lab.features.frozen import (
    FrozenFeatures,
    Preparation,
    cannot_encode,
    encode_images,
    ready,
)
from attittud_lab.models.weights import tensors_alone
from attittud_lab.output.progress import Progress


class TimmFeatures(FrozenFeatures):
    """The numbers before the classifier of a timm network."""

    name = "timm"
    reads = "image"
    arguments = ("network",)

    def __init__(self, network_name: str) -> None:
        self._network_name = network_name

    def load(self) -> Any:
        """Return the network with pretrained weights and without its classifier; timm downloads the
        weights if they are not in its cache.
        """
        name = f"timm:{self._network_name}"
        try:
            timm = optional("timm", "timm", f"features {name!r}")
        except RuntimeError as error:  # raised by a torchvision that was built for another torch
            problem = f"features {name!r}: timm cannot be imported ({one_line(error, 200)})"
            raise InputError(f"{problem}; install the torchvision of this torch") from None
        try:
            with tensors_alone():
                return timm.create_model(self._network_name, pretrained=True, num_classes=0)
        except Exception as error:  # unknown name, no network, a bad file: timm has no common error
            problem = f"features {name!r} cannot be built ({one_line(error, 200)})"
            raise InputError(f"{problem}; check the name and the network") from None

    def transform(self, inputs: Any, progress: Progress | None = None) -> npt.NDArray[np.float32]:
        """Return n x width for images, which are prepared as the network was trained."""
        network = ready(self.network, self.device)
        try:
            about = self.network.pretrained_cfg
            size = about["input_size"][-1]
            preparation = Preparation.of_fractions(size, about["mean"], about["std"])
            return encode_images(network, inputs, preparation, self.device, progress)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise cannot_encode(f"timm:{self._network_name}", error) from None

    def settings(self) -> Plain:
        return {"network": self._network_name}

    @cached_property
    def sha256(self) -> str:
        """A checksum of the weights, as timm does not say in which file they are."""
        digest = hashlib.sha256()
        for name, tensor in self.network.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()
