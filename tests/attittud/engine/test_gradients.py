"""Per-example gradients in factors: every order of contraction, and the precision of products."""

import math

import pytest
import torch
import torch.nn.functional as F

from attittud import Eta, Guide
from attittud.engine import UnsupportedError
from attittud.engine.gradients import Dense, Windows
from tests.helpers.comparing import compare
from tests.helpers.layers import layer
from tests.helpers.zoo import problem

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


def test_the_check_is_as_sharp_as_float32(monkeypatch):
    """An error of a thousandth shows."""
    monkeypatch.setattr(
        Dense, "chunk", lambda self, rows, dtype: 1.001 * self.gradients[rows].to(dtype)
    )
    p = problem("mlp")
    with pytest.raises(UnsupportedError, match=r"body\.0\.bias"):
        Guide(p.model, eta=ETA, rank=2, engine="hooks").backward(
            primary=p.losses, auxiliary=p.loss()
        )


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize(
    "name",
    ["linear", "linear_over_sequences", "conv2d_channels_last", "conv2d_grouped", "attention"],
)
def test_every_order_of_contraction_gives_the_same_result(name, rows):
    given = layer(name)
    compare("hooks", given.model, given.losses, rows)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("window", "dilation"), [((3, 3), 1), ((2, 1), 2), ((1, 3), 1), ((1, 1), 1)]
)
def test_windows_equal_unfold(window, dilation, layout):
    channels = 4
    x = torch.randn(6, channels, 7, 5).contiguous(memory_format=layout)
    weight = torch.empty(2, channels, *window)
    sizes = [size - dilation * (side - 1) for size, side in zip((7, 5), window, strict=True)]
    steps = (1, 1), (dilation, dilation)
    windows = Windows(torch.empty(6, 2, *sizes), x, weight, 3, steps, (0, 0, 0, 0), 1)._right(
        slice(1, 3)
    )
    # From 4 entries x (channels, window) x positions
    # to 2 examples of 2 entries x (entries, positions) x (channels, window).
    want = F.unfold(x[2:], window, dilation=dilation).view(2, 2, channels * math.prod(window), -1)
    want = want.transpose(2, 3).reshape(2, 1, 2 * math.prod(sizes), -1)
    assert torch.equal(windows, want)
