"""Gradients as a flat vector: a function may return no gradient for a parameter."""

import pytest
import torch
from torch import nn

from attittud import Eta, Guide


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
