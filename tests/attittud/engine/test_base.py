"""Products J·v by a second derivative, and without one; the engine `loop`."""

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.engine import make_engine
from tests.helpers.later_batches import data, losses_of
from tests.helpers.layers import Function, weight
from tests.helpers.oracle import jacobian
from tests.helpers.zoo import problem

M = 5


class Kernel(torch.autograd.Function):
    """Like functions written for GPUs: autograd does not see what its backward pass does."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            return gradient * (1 - x.tanh().square())


@pytest.mark.parametrize("engine", ["loop", "hooks"])
def test_products_j_v_are_right_with_a_custom_backward_pass(engine):
    """Torch notices a graph that is cut off completely, but not one in a residual network."""
    model = Function(lambda self, x: x + Kernel.apply(self.a(x)), a=nn.Linear(6, 6)).double()
    network = nn.Sequential(nn.Linear(6, 6), model).double()
    x, layout = data(M, 6), Layout(network.named_parameters())
    vectors = torch.randn(2, layout.size, dtype=torch.float64)
    want = jacobian(losses_of(network(x)), network, layout.names) @ vectors.T
    made = make_engine(engine)
    # Zeros cannot be compared, and after the check nothing is compared any more.
    for factor in (0, 1, 1):
        with made.watch(network):
            found = made.jacobian(losses_of(network(x)), layout).right(factor * vectors)
        torch.testing.assert_close(found, factor * want)


def test_rounding_is_not_mistaken_for_a_wrong_second_derivative():
    """Gradients that cancel leave only rounding in half precision: the check waits for others."""
    x, model = data(16, 6), Function(lambda self, x: x, w=weight(6)).bfloat16()
    x = torch.cat([x, x + 1e-3 * x.flip(0)]).bfloat16()
    layout, made = Layout(model.named_parameters()), make_engine("loop")
    vectors = data(2, 6).bfloat16()
    for second, told in ((-1, None), (1, True)):
        sign = torch.tensor([1, second]).repeat_interleave(16)
        jacobian = made.jacobian(sign * torch.tanh(x * model.w).sum(1), layout)
        want = jacobian.rows().double() @ vectors.double().T
        assert (jacobian.right(vectors) - want).norm() < 1e-2 * want.norm()
        assert made.second_derivatives is told


def test_a_parameter_that_basis_losses_do_not_reach_has_zero_rows(monkeypatch):
    """Its part of the basis is zero, whatever the memory held before."""
    monkeypatch.setattr(
        Layout, "empty", lambda self, *rows: torch.full((*rows, self.size), torch.nan).double()
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3)).double()
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).sin().reshape(6, 4)
    guide = Guide(model, eta=Eta(1, 0.5, -1), rank=3, engine="loop")
    guide.backward(
        primary=model(x).square().mean(1),
        auxiliary=model(x.flip(0)).abs().mean(),
        basis_losses=lambda: model[0](x).square().mean(1),
    )
    first, last = guide.subspace.rows.split([15, 12], dim=1)
    assert torch.equal(last, torch.zeros_like(last))
    assert torch.allclose(first @ first.T, torch.eye(3).double())


def test_a_refresh_needs_no_further_forward():
    p = problem("mlp")
    calls = []
    primary, auxiliary = p.losses(), p.loss()
    p.model.body.register_forward_hook(lambda *_: calls.append(1))
    guide = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3, engine="loop")
    guide.backward(primary=primary, auxiliary=auxiliary)
    assert not calls
    guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=p.losses, refresh=True)
    assert len(calls) == 3
