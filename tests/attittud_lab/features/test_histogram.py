"""Histograms of gradients and colours: what must change them, and what must not."""

import pytest
import torch
from torch import Tensor

from attittud_lab.features import histogram
from attittud_lab.features.histogram import DIRECTIONS, colours, gradients

SIZE = histogram.SIZE


def noise(count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(40, 200, (count, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)


def stripes(degrees: float) -> Tensor:
    """Waves whose gradient has this direction."""
    radians = torch.deg2rad(torch.tensor(degrees))
    down, across = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    wave = torch.sin((across * radians.cos() + down * radians.sin()) * 0.8)
    return (100 + 50 * wave).to(torch.uint8).expand(1, 3, SIZE, SIZE)


@pytest.mark.parametrize("bin_number", range(DIRECTIONS))
def test_the_direction_of_stripes_is_found(bin_number):
    blocks = gradients(stripes(180 / DIRECTIONS * bin_number))
    totals = blocks.view(DIRECTIONS, -1).sum(1)
    assert totals.argmax() == bin_number


def test_brightness_and_contrast_do_not_change_gradients():
    images = noise()
    darker = (images // 2 + 10).to(torch.uint8)  # rounding moves pixels by half a level
    torch.testing.assert_close(gradients(images), gradients(darker), atol=0.02, rtol=0.1)


def test_turned_colours_change_colours_alone():
    images = noise()
    turned = images[:, [2, 0, 1]]
    torch.testing.assert_close(gradients(images), gradients(turned))
    assert not torch.allclose(colours(images), colours(turned), atol=0.01)
