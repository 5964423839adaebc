"""Windows and paddings of convolutions, laid out as memory lies, are torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F

from attittud.engine.windows import Windows, padded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [2, 3, 4, 6, 8])
@pytest.mark.parametrize(("window", "dilation"), [((3, 3), 1), ((2, 1), 2), ((1, 3), 1), ((1, 1), 1)])
def test_windows_in_channels_last_are_those_of_unfold(dtype, channels, window, dilation):
    """Neighbouring channels are copied as one wide element where they can be; no bit may change by that."""
    x = torch.randn(6, channels, 7, 5, dtype=dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.empty(2, channels, *window, dtype=dtype)
    sizes = [size - dilation * (side - 1) for size, side in zip((7, 5), window, strict=True)]
    piece = Windows(torch.empty(6, 2, *sizes), x, weight, 3, (1, 1), (dilation, dilation), 1)
    found = piece._right(slice(1, 3), channels_last=True)
    # 4 entries x (channels, window) x positions -> 2 examples of 2 entries x (entries, positions) x (window, channels)
    want = F.unfold(x[2:].double(), window, dilation=dilation).view(2, 2, channels, math.prod(window), -1)
    want = want.permute(0, 1, 4, 3, 2).reshape(2, 1, 2 * math.prod(sizes), -1)
    assert torch.equal(found.double(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("space", [(7,), (7, 5), (4, 3, 5)])
@pytest.mark.parametrize("last", [True, False])
def test_padding_as_wide_elements_is_padding(dtype, channels, space, last):
    """Layout included: what follows takes whole runs of channels."""
    x = torch.randn(3, *space, channels, dtype=dtype).movedim(-1, 1)
    x = x if last else x.contiguous()
    pads = [1, 2] + [0, 1] * (len(space) - 1)
    found, want = padded(x, pads), F.pad(x, pads)
    assert torch.equal(found, want)
    assert found.stride() == want.stride()


def test_padding_as_wide_elements_of_images_one_row_high():
    """Which torch then lays out channel by channel: a transposed column is in channels_last by its sizes, not by its strides."""
    x = torch.randn(2, 2, 1, 16).movedim(-1, 1).transpose(2, 3)
    assert torch.equal(padded(x, [1, 1, 0, 2]), F.pad(x, [1, 1, 0, 2]))
