"""The decomposition as an aggregator of TorchJD."""

import pytest
import torch
import torchjd_aggregator
from torch import nn
from torchjd.autojac import backward, jac_to_grad

from attittud import Eta, Guide
from attittud.integrations.torchjd import Attittud


def problem() -> tuple[nn.Module, torch.Tensor, list[torch.Tensor]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
    losses = (model(x) - y).square().mean(1)
    return model, losses, [model(x.roll(1, 0)).sin().mean(), model(x * 2).square().mean()]


@pytest.mark.parametrize("rank", [3, 10])
def test_the_update_equals_the_update_of_a_guide(rank):
    first, second = Eta(neutral=0.5, helpful=1, harmful=-1), Eta(neutral=1, helpful=0, harmful=2)
    model, losses, (one, two) = problem()
    Guide(
        model, eta={"one": first, "two": second}, primary_weight=0.3, basis="exact", rank=rank
    ).backward(losses, {"one": one, "two": two})
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model, losses, tasks = problem()
    backward([losses, *tasks])
    jac_to_grad(
        model.parameters(), Attittud([first, second], primary_weight=0.3, primary_rows=6, rank=rank)
    )
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_primary_row_gives_one_sided_pcgrad(sign):
    primary, auxiliary = torch.randn(20).double(), torch.randn(20).double()
    inner = primary @ auxiliary
    auxiliary = auxiliary * inner.sign() * sign
    projected = (
        auxiliary - primary * (auxiliary @ primary) / primary.square().sum()
        if sign < 0
        else auxiliary
    )
    found = Attittud(Eta(neutral=1, helpful=1, harmful=0))(torch.stack([primary, auxiliary]))
    assert torch.allclose(found, primary + projected)


def test_wrong_numbers_of_rows_and_etas_are_refused():
    with pytest.raises(ValueError, match="auxiliary"):
        Attittud(Eta(1, 1, 0), primary_rows=3)(torch.randn(3, 5))
    with pytest.raises(ValueError, match="2 Etas"):
        Attittud([Eta(1, 1, 0)] * 2)(torch.randn(2, 5))
    with pytest.raises(ValueError, match="primary_rows"):
        Attittud(Eta(1, 1, 0), primary_rows=0)


def test_the_example_runs(capsys):
    torchjd_aggregator.main()
    errors = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(errors) == 3 and all(0 < error < 2 for error in errors)
