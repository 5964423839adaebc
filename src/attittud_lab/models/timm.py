"""`timm:NAME`: an image network of the package timm."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from torch import nn

from attittud_lab.errors import InputError, one_line, optional

if TYPE_CHECKING:
    from attittud_lab.models import Wanted


def timm_body(request: Wanted, name: str) -> nn.Module:
    """The network without its classifier; `build_model` finds the number of features."""
    try:
        timm = optional("timm", "timm", f"model 'timm:{name}'")
    except RuntimeError as error:  # raised by a torchvision that was built for another torch
        problem = (
            f"model timm:{name}: timm is installed, but cannot be imported ({one_line(error, 200)})"
        )
        raise InputError(f"{problem}; install the torchvision that belongs to this torch") from None
    config = request.config
    settings = {"num_classes": 0, "in_chans": request.shape[0], "drop_rate": config.dropout}
    try:
        network = timm.create_model(name, pretrained=config.pretrained, **settings)
    except Exception as error:  # unknown name, no network, a bad file: timm has no common error
        advice = "check the name, or set model.pretrained=false if there is no network"
        raise InputError(
            f"model timm:{name} cannot be built ({one_line(error, 200)}); {advice}"
        ) from None
    return nn.Sequential(OrderedDict(network=network))  # its name in files of weights
