"""Windows and paddings of convolutions in the order of memory equal torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F

from attittud.autograd.layout import Layout
from attittud.engine import make_engine, rules
from attittud.engine.gradients import Windows, padded
from tests.helpers.layers import Contiguous


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [2, 3, 4, 6, 8])
@pytest.mark.parametrize(("window", "dilation"), [((3, 3), 1), ((2, 1), 2), ((1, 3), 1), ((1, 1), 1)])
def test_windows_in_channels_last_equal_unfold(dtype, channels, window, dilation):
    """Neighbouring channels are copied as one wide element where they can be; no bit may change by that."""
    x = torch.randn(6, channels, 7, 5, dtype=dtype).contiguous(memory_format=torch.channels_last)
    weight = torch.empty(2, channels, *window, dtype=dtype)
    sizes = [size - dilation * (side - 1) for size, side in zip((7, 5), window, strict=True)]
    piece = Windows(torch.empty(6, 2, *sizes), x, weight, 3, ((1, 1), (dilation, dilation)), (0, 0, 0, 0), 1)
    found = piece._right(slice(1, 3), channels_last=True)
    # 4 entries x (channels, window) x positions -> 2 examples of 2 entries x (entries, positions) x (window, channels)
    want = F.unfold(x[2:].double(), window, dilation=dilation).view(2, 2, channels, math.prod(window), -1)
    want = want.permute(0, 1, 4, 3, 2).reshape(2, 1, 2 * math.prod(sizes), -1)
    assert torch.equal(found.double(), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("space", [(7,), (7, 5), (4, 3, 5)])
@pytest.mark.parametrize("last", [True, False])
def test_padding_with_wide_elements_equals_f_pad(dtype, channels, space, last):
    """The layout is kept too: later code reads whole runs of channels."""
    x = torch.randn(3, *space, channels, dtype=dtype).movedim(-1, 1)
    x = x if last else x.contiguous()
    pads = [1, 2] + [0, 1] * (len(space) - 1)
    found, want = padded(x, pads), F.pad(x, pads)
    assert torch.equal(found, want)
    assert found.stride() == want.stride()


def test_padding_with_wide_elements_works_for_images_one_row_high():
    """torch lays such images out channel by channel: a transposed column is in channels_last by its sizes, not its strides."""
    x = torch.randn(2, 2, 1, 16).movedim(-1, 1).transpose(2, 3)
    assert torch.equal(padded(x, [1, 1, 0, 2]), F.pad(x, [1, 1, 0, 2]))


@pytest.mark.parametrize("bias", [False, True])
def test_a_gradient_that_lost_the_layout_of_images_gets_it_back(bias, monkeypatch):
    """Autograd gets it without a copy of its own, but not if it sums it for a bias: another order has other last bits."""
    torch.manual_seed(0)
    first, second = torch.nn.Conv2d(4, 8, 3, padding=1, bias=bias), torch.nn.Conv2d(8, 6, 3, bias=bias)
    model = torch.nn.ModuleList([first, second]).double().to(memory_format=torch.channels_last)
    x = torch.randn(3, 4, 6, 5, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    seen, went_on = [], []

    class Seen(Windows):
        def __init__(self, gradient, *rest):
            seen.append(gradient)
            super().__init__(gradient, *rest)

    monkeypatch.setattr(rules, "Windows", Seen)

    def convolved(layer, x):
        out = layer(x)
        out.grad_fn.register_prehook(went_on.extend)
        return Contiguous.apply(out)

    def losses():
        return convolved(second, convolved(first, x)).square().mean((1, 2, 3))

    engine, layout = make_engine("hooks"), Layout(model.named_parameters())
    with engine.watch(model):
        jacobian = engine.jacobian(losses(), layout)
        seen.clear()
        went_on.clear()
        found = jacobian.left(torch.eye(3, dtype=torch.float64))
    # The first convolution has no backward pass: nothing before it asks for a gradient.
    assert len(seen) == 2 and went_on
    assert all(g.is_contiguous(memory_format=torch.channels_last) for g in seen)
    assert all(g.is_contiguous(memory_format=torch.channels_last) is not bias for g in went_on)
    wanted = [torch.autograd.grad(loss, layout.parameters, retain_graph=True) for loss in losses()]
    for row, gradients in zip(found, wanted, strict=True):
        for got, want in zip(layout.views(row), gradients, strict=True):
            torch.testing.assert_close(got, want)
