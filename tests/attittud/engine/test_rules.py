"""The rules for single layers, against one backward pass per example."""

import pytest
import torch
from torch import nn

from tests.helpers.comparing import compare
from tests.helpers.layers import Layer, M, conv, layer


@pytest.mark.parametrize("name", ["embedding", "embedding_padding", "embedding_computed"])
def test_embeddings_with_many_rows_have_right_gradients(name, monkeypatch):
    """Gradients of large tables are not formed as products of matrices."""
    monkeypatch.setattr("attittud.engine.rules.SMALL_TABLE", 0)
    given = layer(name)
    compare("hooks", given.model, given.losses)


# Paddings, groups and windows of several kinds.
CONVOLUTIONS = {
    "wide": lambda: conv(
        nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 4, 3, stride=2, padding=(1, 2))
    ),
    "grouped": lambda: conv(
        nn.Conv2d(8, 16, 3, groups=2, padding="same"), nn.Conv2d(16, 8, 2, groups=4, padding=1)
    ),
    "narrow": lambda: conv(
        nn.Conv2d(8, 3, (1, 3), padding=(0, 1)), nn.Conv2d(3, 2, 3, dilation=2, padding=2)
    ),
    "reflect": lambda: conv(
        nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), nn.Conv2d(8, 8, 3, padding=1)
    ),
    "volumes": lambda: conv(
        nn.Conv3d(8, 4, 3, padding=1), nn.Conv3d(4, 8, (1, 2, 1), padding=1, groups=2)
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("size", [(6, 5), (1, 4)], ids=["", "one_row"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_in_channels_last_have_right_gradients_in_float32(name, size):
    """The weights have another order in memory than their gradients are formed in."""
    size = {"volumes": (3, *size), "reflect": (2, size[1])}.get(name, size)
    layout = torch.channels_last_3d if name == "volumes" else torch.channels_last
    model = CONVOLUTIONS[name]().to(memory_format=layout)
    x = torch.randn(M, 8, *size).to(memory_format=layout)
    compare("hooks", model, Layer(model, x).losses, tolerance=1e-5)
