"""Averages of the weights before and after training."""

import pytest
import torch
from torch import nn

from attittud import averages, interpolate, weights_of


def moved() -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[2].bias.requires_grad_(False)
    start = weights_of(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model, start, {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_parameters_are_averages_inside_the_block_and_restored_bit_for_bit_after_it(share):
    model, start, end = moved()
    with interpolate(model, start, share):
        for name, parameter in model.named_parameters():
            want = end[name] if name not in start else (1 - share) * start[name] + share * end[name]
            assert torch.allclose(parameter, want, atol=1e-6)
            if share in (0.0, 1.0):
                assert torch.equal(parameter, want)
    assert all(torch.equal(parameter, end[name]) for name, parameter in model.named_parameters())


def test_an_error_inside_the_block_restores_the_parameters_too():
    model, start, end = moved()
    with pytest.raises(ZeroDivisionError), interpolate(model, start, 0.5):
        1 / 0  # noqa: B018 - an error in the middle
    assert all(torch.equal(parameter, end[name]) for name, parameter in model.named_parameters())


def test_the_curve_begins_and_ends_where_training_did():
    model, start, end = moved()
    found = averages(model, start, lambda: model[0].weight.detach().clone())
    assert list(found) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert torch.equal(found[0.0], start["0.weight"]) and torch.equal(found[1.0], end["0.weight"])


def test_only_trained_parameters_are_kept_and_unknown_names_are_refused():
    model, start, _ = moved()
    assert "2.bias" not in start and "0.weight" in start
    with (
        pytest.raises(ValueError, match="'other'"),
        interpolate(model, start | {"other": torch.zeros(1)}, 0.5),
    ):
        pass


def test_weights_have_the_same_names_before_and_after_torch_compile():
    model = nn.Linear(2, 1)
    compiled = torch.compile(model, backend="eager")
    assert weights_of(compiled).keys() == weights_of(model).keys()
