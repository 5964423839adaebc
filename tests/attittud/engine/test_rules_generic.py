"""A function without a rule runs again for every example alone."""

import torch
from torch import nn

from attittud.autograd.layout import Layout
from attittud.engine import make_engine


class Wave(nn.Module):
    """A parameter in a function for which there is no rule."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, 4, dtype=torch.float64))

    def forward(self, x):
        return torch.logaddexp(torch.sin(x), self.w)


def test_any_function_gets_per_example_gradients_by_running_it_again():
    """A function that no rule knows runs again for every example alone."""
    model = Wave()
    x = torch.linspace(-3, 3, 20, dtype=torch.float64).reshape(5, 4)
    layout = Layout(list(model.named_parameters()))
    engine = make_engine("hooks")
    with engine.watch(model):
        found = engine.jacobian(model(x).square().sum(1), layout).rows()
    rows = [torch.autograd.grad(model(row[None]).square().sum(), model.w)[0] for row in x]
    assert torch.allclose(found, torch.stack(rows), atol=1e-12)
