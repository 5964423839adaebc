"""`timm:NAME`: an image network of the package timm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from attittud_lab.errors import InputError, needs, one_line

if TYPE_CHECKING:
    from attittud_lab.models.registry import Wanted


class TimmBody(nn.Module):
    """A timm network without its classifier."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        # Some have a layer behind these features; `build_model` looks.
        self.features = int(network.num_features)  # type: ignore[arg-type]  # a number, where Module promises tensors and modules

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)  # type: ignore[no-any-return]  # modules return Any


def timm_body(wanted: Wanted, name: str) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise needs("timm", "timm", f"model 'timm:{name}'") from None
    except RuntimeError as error:  # what a torchvision raises that was built for another torch
        raise InputError(
            f"model timm:{name}: timm is installed, but cannot be imported ({one_line(error, 200)}); install the "
            "torchvision that belongs to this torch"
        ) from None
    config = wanted.config
    try:
        network = timm.create_model(
            name, pretrained=config.pretrained, num_classes=0, in_chans=wanted.shape[0], drop_rate=config.dropout
        )
    except Exception as error:  # unknown name, no network, a bad file: timm has no common error
        raise InputError(
            f"model timm:{name} cannot be built ({one_line(error, 200)}); check the name, or set "
            "model.pretrained=false where there is no network"
        ) from None
    return TimmBody(network)
