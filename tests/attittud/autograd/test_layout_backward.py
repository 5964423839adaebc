"""Gradients are written straight into a flat vector."""

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from attittud.autograd.layout import Layout, written_into


def test_gradients_are_written_into_a_vector():
    """Also for parameters that the loss does not reach; autograd returns them without memory."""
    model = nn.ModuleDict({"reached": nn.Linear(3, 2), "not": nn.Linear(3, 2)})
    layout, x = Layout(model.named_parameters()), torch.randn(4, 3)
    flat = torch.full((layout.size,), torch.nan)
    parameters = list(model.parameters())
    with written_into(layout, flat):
        found = torch.autograd.grad(
            model["reached"](x).square().sum(), parameters, allow_unused=True
        )
    assert all(gradient is None or gradient.untyped_storage().nbytes() == 4 for gradient in found)
    want = torch.autograd.grad(model["reached"](x).square().sum(), parameters, allow_unused=True)
    assert torch.equal(flat, layout.flatten(want))
    assert not any(p._backward_hooks for p in parameters)


@pytest.mark.parametrize("waiting", [0, 5])
def test_autograd_may_return_small_gradients(waiting, monkeypatch):
    """They need no hook; all of them are written, some at a time, and what is missing becomes
    zero.
    """
    model = nn.ModuleDict(
        {"reached": nn.Linear(3, 2), "also": nn.Linear(2, 2), "not": nn.Linear(3, 2)}
    )
    layout, x = Layout(model.named_parameters()), torch.randn(4, 3)
    flat = torch.full((layout.size,), torch.nan)
    monkeypatch.setattr("attittud.autograd.layout.WAITING", waiting)

    def gradients():
        loss = model["also"](model["reached"](x)).square().sum()
        return torch.autograd.grad(loss, layout.parameters, allow_unused=True)

    with written_into(layout, flat, returned=True) as writing:
        writing.keep(gradients())
    want = torch.zeros(layout.size)
    layout.add_(want, gradients(), fresh=False)
    assert torch.equal(flat, want)
    assert not any(p._backward_hooks for p in layout.parameters)


class WithoutGradient(torch.autograd.Function):
    """Uses a parameter, but returns no gradient for it."""

    @staticmethod
    def forward(x, weight):
        return x * weight.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ARG004 - torch passes it
        ctx.factor = inputs[1].detach().sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


@pytest.mark.parametrize(
    ("engine", "tasks", "judged"),
    [("loop", 1, False), ("loop", 2, False), ("hooks", 2, True)],
)
def test_a_parameter_for_which_a_function_returns_no_gradient_gets_zeros(engine, tasks, judged):
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"body": nn.Linear(4, 4), "primary": nn.Linear(4, 2), "auxiliary": nn.Linear(4, 2)}
    )
    model.register_parameter("weight", nn.Parameter(torch.ones(64) / 64))
    x = torch.randn(5, 4)

    def losses(head):
        return model[head](WithoutGradient.apply(model["body"](x), model.weight)).square().mean(1)

    guide = Guide(
        model, eta="auto" if judged else Eta(1, 1, 1), rank=2, engine=engine, judge_every=1
    )
    for _ in range(2):
        model.zero_grad()
        auxiliary = {str(at): losses("auxiliary").mean() for at in range(tasks)}
        guide.backward(
            lambda: losses("primary"),
            auxiliary,
            judge=(lambda: losses("primary")) if judged else None,
        )
    assert torch.equal(model.weight.grad, torch.zeros(64))
    if judged:  # the weights are not all 1
        return
    want = sum(
        times * torch.autograd.grad(losses(head).mean(), model["body"].weight)[0]
        for head, times in (("primary", 1), ("auxiliary", tasks))
    )
    assert torch.allclose(model["body"].weight.grad, want, rtol=1e-5)
