"""One backward pass for each row, without a further forward pass."""

import torch

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from tests.helpers.zoo import problem

WEIGHTS = (1, 0.5, -1)


def test_a_parameter_that_basis_losses_do_not_reach_has_zero_rows(monkeypatch):
    """Its part of the basis is zero, whatever the memory held before."""
    monkeypatch.setattr(
        Layout, "empty", lambda self, *rows: torch.full((*rows, self.size), torch.nan).double()
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3)).double()
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).sin().reshape(6, 4)
    guide = Guide(model, eta=Eta(*WEIGHTS), rank=3, engine="loop")
    guide.backward(
        primary=model(x).square().mean(1),
        auxiliary=model(x.flip(0)).abs().mean(),
        basis_losses=lambda: model[0](x).square().mean(1),
    )
    assert guide.subspace is not None
    first, last = guide.subspace.rows.split([15, 12], dim=1)
    assert torch.equal(last, torch.zeros_like(last))
    assert torch.allclose(first @ first.T, torch.eye(3).double())


def test_a_refresh_needs_no_further_forward():
    p = problem("mlp")
    calls = []
    primary, auxiliary = p.losses(), p.loss()
    p.model.body.register_forward_hook(lambda *_: calls.append(1))
    guide = Guide(p.model, eta=Eta(*WEIGHTS), rank=3, engine="loop")
    guide.backward(primary=primary, auxiliary=auxiliary)
    assert not calls
    guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=p.losses, refresh=True)
    assert len(calls) == 3
