"""Windows of convolutions equal torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F

from attittud.engine.gradients import Windows


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
