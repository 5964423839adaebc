"""A running mean of primary gradients: its directions keep their own signs, and a resumed run goes on with the same mean."""

import json

import pytest
import torch
from torch import nn

import attittud.step.step
from attittud import Eta, Guide

SETTINGS = {"eta": Eta(neutral=1, helpful=1, harmful=0), "primary_weight": 0.0, "basis": "running_mean"}


class Plane(nn.Module):
    """Gradients are what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def loss(self, *gradient: float) -> torch.Tensor:
        return self.point @ torch.tensor(gradient, dtype=torch.float64)


def step(model: Plane, guide: Guide, protected: tuple[float, float], new: tuple[float, float]) -> list[float]:
    model.point.grad = None
    guide.backward(primary=model.loss(*protected), auxiliary=model.loss(*new))
    return model.point.grad.tolist()


@pytest.mark.parametrize("scope", ["model", "tensor"])
def test_the_mean_decides_the_sign_and_not_the_last_gradient(scope):
    model = Plane()
    guide = Guide(model, **SETTINGS, refresh_every=1, basis_options={"rate": 0.25}, scope=scope)
    assert step(model, guide, (4, 0), (-1, 1)) == [0, 1]
    # Now m = (2.75, 0): the new gradient opposes it, although it goes along with the protected one.
    assert step(model, guide, (-1, 0), (-1, 1)) == [0, 1]
    assert step(model, guide, (-1, 0), (2, 1)) == [2, 1]


def test_the_mean_starts_at_zero_or_at_the_first_gradient():
    directions = {}
    for start in ("zero", "first"):
        model = Plane()
        guide = Guide(model, **SETTINGS, refresh_every=1, basis_options={"rate": 0.5, "start": start})
        step(model, guide, (4, 0), (1, 1))
        step(model, guide, (0, 4), (1, 1))
        directions[start] = guide.subspace.rows[0].tolist()
    assert directions["first"] == pytest.approx([0.5**0.5, 0.5**0.5])  # (4, 0)/2 + (0, 4)/2
    assert directions["zero"] == pytest.approx([1 / 5**0.5, 2 / 5**0.5])  # (4, 0)/4 + (0, 4)/2


@pytest.mark.parametrize("scope", ["model", "tensor"])
def test_a_resumed_run_has_the_same_mean(scope):
    whole, other = Plane(), Plane()
    settings = {**SETTINGS, "refresh_every": 1, "basis_options": {"rate": 0.3}, "scope": scope}
    guide, again = Guide(whole, **settings), Guide(other, **settings)
    step(whole, guide, (3, 1), (1, -1))
    step(whole, guide, (-1, 2), (1, -1))
    state = guide.state_dict()
    json.dumps({name: value for name, value in state.items() if name != "basis"})  # checkpoints keep it as JSON
    again.load_state_dict(state)
    for protected in ((-2, 1), (0, -1)):
        assert step(whole, guide, protected, (1, -2)) == step(other, again, protected, (1, -2))
    del state["factor"]
    with pytest.raises(ValueError, match="'factor'"):
        again.load_state_dict(state)


def test_a_refresh_that_finds_nan_leaves_the_mean_alone():
    model = Plane()
    guide = Guide(model, **SETTINGS, refresh_every=1)
    step(model, guide, (4, 0), (-1, 1))
    step(model, guide, (torch.nan, 0), (-1, 1))
    assert guide.subspace.rows.tolist() == [[1, 0]] and guide.subspace.factor.tolist() == [[4]]


def test_a_zero_gradient_protects_nothing():
    """So it is for the divergence from the start model at the start model."""
    model = Plane()
    guide = Guide(model, **SETTINGS, refresh_every=1)
    assert step(model, guide, (0, 0), (-1, 1)) == [-1, 1]
    assert step(model, guide, (4, 0), (-1, 1)) == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rate": 0}, "above 0"), ({"start": "last"}, "'zero' or 'first'"), ({"gamma": 0.1}, "basis_options")],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Guide(Plane(), **SETTINGS, basis_options=options)


def test_a_state_with_another_rate_is_refused():
    model = Plane()
    guide = Guide(model, **SETTINGS, basis_options={"rate": 0.3})
    step(model, guide, (4, 0), (-1, 1))
    with pytest.raises(ValueError, match=r"rate=0\.3"):
        Guide(model, **SETTINGS).load_state_dict(guide.state_dict())


def _assigned(model: nn.Module) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


CHANGES = {
    "nothing": lambda model: None,
    "channels_last": lambda model: model.to(memory_format=torch.channels_last),
    "replaced parameters": _assigned,
    "renamed": lambda model: setattr(model, "0", nn.Sequential(model[0])),
    "renamed, channels_last": lambda model: setattr(
        model.to(memory_format=torch.channels_last), "0", nn.Sequential(model[0])
    ),
    "float32": lambda model: model.float(),
    "bfloat16": lambda model: model.float().bfloat16(),
}


@pytest.mark.parametrize("scope", ["model", "tensor"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_mean_outlives_a_conversion_of_the_model(change, scope):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 2)).double()
    guide = Guide(model, **SETTINGS, refresh_every=1, basis_options={"rate": 0.1}, scope=scope)
    means = None
    for number in range(5):
        if number == 4:
            CHANGES[change](model)
        x = torch.randn(6, 2, 3, 3, dtype=torch.float64).to(model[2].weight.dtype)
        losses = model(x).square().mean(1)
        found = [g.double() for g in torch.autograd.grad(losses.mean(), list(model.parameters()), retain_graph=True)]
        means = found if means is None else [0.1 * g + 0.9 * m for g, m in zip(found, means, strict=True)]
        model.zero_grad()
        guide.backward(losses, -losses.mean())
    directions = [part.double().flatten() for part in guide.subspace.split(guide.subspace.rows[0])]
    wanted = [m.flatten() for m in means]
    if scope == "model":
        directions, wanted = [torch.cat(directions)], [torch.cat(wanted)]
    tolerance = 1e-2 if change == "bfloat16" else 1e-6
    for direction, mean in zip(directions, wanted, strict=True):
        assert torch.dot(direction, mean) / mean.norm() > 1 - tolerance


def test_a_mean_over_other_parameters_starts_again_and_says_so(caplog):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(5, 3)
    guide = Guide(model, **SETTINGS, refresh_every=1)
    for frozen in (False, True, True):
        model[0].requires_grad_(not frozen)
        model.zero_grad()
        guide.backward(model(x).square().mean(1), model(-x).mean())
    assert [record.message for record in caplog.records] == [
        "basis 'running_mean' starts again, because the shared parameters have changed"
    ]


def test_a_mean_is_not_taken_over_by_other_parameters_of_the_same_name(caplog):
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(5, 3)
    guide = Guide(model, **SETTINGS, refresh_every=1)
    for exchanged in (False, True):
        if exchanged:
            model[0], model[1] = model[1], model[0]
        model.zero_grad()
        guide.backward(model(x).square().mean(1), model(-x).mean())
    assert [record.message for record in caplog.records] == [
        "basis 'running_mean' starts again, because the shared parameters have changed"
    ]


def test_a_mean_outlives_an_interruption_right_after_a_conversion(monkeypatch):
    found = []
    for interrupted in (False, True):
        model = Plane()
        guide = Guide(model, **SETTINGS, refresh_every=1, basis_options={"rate": 0.5})
        step(model, guide, (4, 0), (1, 1))
        _assigned(model)
        if interrupted:
            with monkeypatch.context() as patched:
                patched.setattr(attittud.step.step, "Report", _interrupt)
                with pytest.raises(KeyboardInterrupt):
                    step(model, guide, (0, 4), (1, 1))
        step(model, guide, (0, 4), (1, 1))
        found.append(guide.subspace.rows[0].tolist())
    assert found[0] == found[1] == pytest.approx([0.5**0.5, 0.5**0.5])


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
