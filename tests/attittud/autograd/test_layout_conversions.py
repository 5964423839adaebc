"""Gradients that are taken before autocast converts them back have the bits of an ordinary pass."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attittud import Eta, Guide
from attittud.autograd.layout import Layout, converts, copy_each_, unconverted, walk

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
EVEN = Eta(1, 1, 1)


class Model(nn.Module):
    """Convolutions and linear layers are converted; a norm, a scale and `twice` are not."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)
        self.body, self.scale = nn.Linear(12, 16), nn.Parameter(torch.ones(16))
        self.primary, self.auxiliary = nn.Linear(16, 3), nn.Linear(16, 2)
        self.twice = nn.Parameter(torch.eye(16))
        self.to(dtype)

    def forward(self, x, head):
        x = self.norm(self.conv(x)).flatten(1)[:, :12]
        x = self.body(x).tanh() * self.scale.exp()
        x = F.linear(x, self.twice) + x.to(self.twice.dtype) * self.twice.sum(0)
        return getattr(self, head)(x)


class Passes:
    """Losses of a model, in a forward pass under autocast."""

    def __init__(self, device, dtype=torch.float32, half=torch.bfloat16, cache=True):
        self.model = Model(dtype).to(device)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(6, 3, 6, 6, generator=generator, dtype=dtype).to(device)
        self.autocast = torch.autocast(device, half, cache_enabled=cache) if half else nullcontext()

    def losses(self, head="primary"):
        with self.autocast:
            out = self.model(self.x.flip(0) if head == "auxiliary" else self.x, head)
        return out.double().square().mean(1)

    def ordinary(self):
        """Both gradients of each parameter, computed by torch alone."""
        parameters = list(self.model.parameters())
        found = [
            torch.autograd.grad(self.losses(head).mean(), parameters, allow_unused=True)
            for head in ("primary", "auxiliary")
        ]
        return [tuple(pair) for pair in zip(*found, strict=True)]


def names(p, losses, layout=None):
    layout = layout or Layout(p.model.named_parameters())
    ends = unconverted(losses, layout, layout.parameters)
    return {
        name
        for name, end in zip(layout.names, ends, strict=True)
        if not isinstance(end, torch.Tensor)
    }


@DEVICES
@pytest.mark.parametrize("cache", [True, False])
def test_parameters_that_are_used_in_another_type_only_are_replaced(device, cache):
    p, q = Passes(device, cache=cache), Passes(device, half=None)
    expected = {f"{m}.{kind}" for m in ("conv", "body", "primary") for kind in ("weight", "bias")}
    assert names(p, p.losses()) == expected
    assert not names(q, q.losses())


def test_parameters_with_hooks_and_of_other_types_are_not_replaced():
    p = Passes("cpu")
    handle = p.model.conv.weight.register_hook(lambda g: g)
    assert "conv.weight" not in names(p, p.losses()) and "conv.bias" in names(p, p.losses())
    handle.remove()
    assert "conv.weight" in names(p, p.losses())
    # Its flat vector is float32, but its gradients are rounded to bfloat16.
    q = Passes("cpu", dtype=torch.bfloat16, half=None)
    assert not names(q, F.linear(torch.ones(2, 12), q.model.body.weight.float()).square().mean(1))
    handed = Layout(p.model.float().named_parameters())
    assert "body.weight" in names(p, p.losses(), handed)
    p.model.half()  # the vector is still float32, but gradients are now rounded to float16
    loss = F.linear(torch.ones(2, 12), p.model.body.weight.bfloat16().float()).square().mean(1)
    assert converts(walk(loss)) and not names(p, loss, handed)


@DEVICES
@pytest.mark.parametrize("half", [torch.bfloat16, None])
@pytest.mark.parametrize("refreshing", [True, False])
def test_equal_weights_give_the_sum_of_both_gradients_to_the_bit(device, half, refreshing):
    p = Passes(device, half=half)
    guide = Guide(p.model, eta=EVEN, rank=3, engine="loop")
    for refresh in (True, refreshing):
        p.model.zero_grad()
        guide.backward(p.losses(), p.losses("auxiliary").mean(), refresh=refresh)
    for parameter, (primary, auxiliary) in zip(p.model.parameters(), p.ordinary(), strict=True):
        parts = [g for g in (auxiliary, primary) if g is not None]
        assert torch.equal(parameter.grad, sum(parts[1:], parts[0]))


@DEVICES
def test_rows_of_a_sketch_are_those_of_ordinary_backward_passes(device):
    p = Passes(device)
    layout = Layout(
        (name, q) for name, q in p.model.named_parameters() if not name.startswith("auxiliary")
    )
    guide = Guide(p.model, eta=EVEN, rank=3, engine="loop")
    losses, weights = p.losses(), torch.randn(4, 6, device=device, dtype=torch.float64)
    found = guide.engine.jacobian(losses, layout).left(weights)
    for row, w in zip(found, weights, strict=True):
        wanted = torch.autograd.grad(losses, layout.parameters, w, retain_graph=True)
        for view, gradient in zip(layout.views(row), wanted, strict=True):
            assert torch.equal(view, gradient)


@pytest.mark.parametrize("order", ["primary", "auxiliary"])
def test_micro_batches_add_up_in_full_precision(order):
    """Gradients of auxiliary losses that come first wait until the shared parameters are known."""
    p = Passes("cpu")
    guide = Guide(p.model, eta=EVEN, rank=3, engine="loop")
    for _ in range(2):
        p.model.zero_grad()
        for verb in ("primary", "auxiliary") if order == "primary" else ("auxiliary", "primary"):
            for scale in (0.75, 0.25):
                losses = p.losses(verb) * scale
                guide.primary(losses) if verb == "primary" else guide.auxiliary(losses.mean())
        guide.combine()
    parameters = list(p.model.parameters())
    wanted = []
    for head in ("auxiliary", "primary"):
        both = [
            torch.autograd.grad((p.losses(head) * s).mean(), parameters, allow_unused=True)
            for s in (0.75, 0.25)
        ]
        wanted.append([None if a is None else a + b for a, b in zip(*both, strict=True)])
    for parameter, *pair in zip(parameters, *wanted, strict=True):
        parts = [g for g in pair if g is not None]
        assert torch.equal(parameter.grad, sum(parts[1:], parts[0]))


@DEVICES
def test_copies_of_several_types_are_copies(device):
    sources = [
        torch.randn(5, device=device).to(dtype)
        for dtype in (torch.float32, torch.bfloat16, torch.float16) * 3
    ]
    targets = [torch.empty(5, device=device) for _ in sources]
    copy_each_(targets, sources)
    assert all(torch.equal(to, x.float()) for to, x in zip(targets, sources, strict=True))
