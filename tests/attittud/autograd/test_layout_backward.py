"""Gradients are written straight into a flat vector."""

import pytest
import torch
from torch import nn

from attittud.autograd.layout import Layout, written_into


@pytest.mark.parametrize("add", [False, True])
def test_gradients_are_written_into_a_vector(add):
    """Also for parameters that the loss does not reach; autograd returns them without memory."""
    model = nn.ModuleDict({"reached": nn.Linear(3, 2), "not": nn.Linear(3, 2)})
    layout, x = Layout(model.named_parameters()), torch.randn(4, 3)
    flat = torch.full((layout.size,), 7.0) if add else torch.full((layout.size,), torch.nan)
    before = flat.clone() if add else torch.zeros(layout.size)
    parameters = list(model.parameters())
    with written_into(layout, flat, add=add):
        found = torch.autograd.grad(model["reached"](x).square().sum(), parameters, allow_unused=True)
    assert all(gradient is None or gradient.untyped_storage().nbytes() == 4 for gradient in found)
    want = torch.autograd.grad(model["reached"](x).square().sum(), parameters, allow_unused=True)
    layout.add_(before, want, fresh=False)
    assert torch.equal(flat, before)
    assert not any(p._backward_hooks for p in parameters)


@pytest.mark.parametrize("most", [0, 5, 100])
def test_autograd_may_return_small_gradients(most):
    """They need no hook; all of them are written, some at a time, and what is missing becomes zero."""
    model = nn.ModuleDict({"reached": nn.Linear(3, 2), "also": nn.Linear(2, 2), "not": nn.Linear(3, 2)})
    layout, x = Layout(model.named_parameters()), torch.randn(4, 3)
    flat, arrived = torch.full((layout.size,), torch.nan), set[int]()

    def gradients():
        loss = model["also"](model["reached"](x)).square().sum()
        return torch.autograd.grad(loss, layout.parameters, allow_unused=True)

    with written_into(layout, flat, most=most, returned=True, arrived=arrived) as writing:
        writing.keep(gradients())
    want = torch.zeros(layout.size)
    layout.add_(want, gradients(), fresh=False)
    assert torch.equal(flat, want)
    assert arrived == {id(p) for name, p in model.named_parameters() if not name.startswith("not")}
    assert not any(p._backward_hooks for p in layout.parameters)
