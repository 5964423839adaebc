"""The gradient that each parameter gets depends on which losses reach it, not on its name."""

import pytest
import torch
from torch import nn

from attittud import AccumulationWarning, Eta, Guide
from tests.helpers.oracle import error, expected, expected_for, gradients
from tests.helpers.zoo import TwoHeads, problem


def step(p, **options):
    guide = Guide(p.model, **{"eta": Eta(1, 0, -1), "rank": 3} | options)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    return guide


def test_a_basis_on_another_device_is_computed_again():
    """As after `model.cuda()`, which keeps the parameters' objects."""
    p = problem("mlp", torch.float64)
    guide = step(p, refresh_every=100)
    guide.subspace.layout.device = torch.device("meta")
    for refreshed in (True, False):
        p.model.zero_grad()
        assert guide.backward(primary=p.losses(), auxiliary=p.loss()).refreshed is refreshed
        assert guide.subspace.layout.device.type == "cpu"


def test_a_model_that_becomes_double_between_refreshes_is_exact_at_once():
    p = problem("mlp", torch.float32)
    guide = Guide(p.model, eta=Eta(1, 1, 1), rank=3, refresh_every=100)
    for dtype in (torch.float32, torch.float64):
        p.model.to(dtype).zero_grad()
        p.xp, p.xa = p.xp.to(dtype), p.xa.to(dtype)
        report = guide.backward(primary=p.losses(), auxiliary=p.loss())
        g_p, g_a = gradients(p.losses().mean(), p.model), gradients(p.loss(), p.model)
        assert report.refreshed
        for name, parameter in guide.shared_parameters.items():
            assert parameter.grad.dtype == dtype
            assert torch.equal(parameter.grad, g_a[name] + g_p[name])


def test_a_parameter_that_grows_is_noticed():
    """`.data =` keeps the object and, for more rows, its strides."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), torch.randn(6, 4)
    guide = Guide(model, eta=Eta(1, 1, 1), rank=2, refresh_every=100)
    for rows in (3, 5):
        model[1].weight.data = torch.randn(rows, 5)
        model[1].bias.data = torch.randn(rows)
        for refreshed in (True, False):
            model.zero_grad()
            assert (
                guide.backward(model(x).square().mean(1), model(-x).mean()).refreshed is refreshed
            )
            got = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            (model(x).square().mean(1).mean() + model(-x).mean()).backward()
            assert all(
                torch.allclose(a, p.grad, atol=1e-6)
                for a, p in zip(got, model.parameters(), strict=True)
            )


@pytest.mark.parametrize("how", ["predicate", "iterable"])
def test_parameters_argument_restricts_the_decomposition(how):
    """Parameters that are left out get the plain weighted sum, whatever Eta says."""
    p = problem("mlp", torch.float64)
    only = ["body.0.weight", "body.2.bias"]
    params = dict(p.model.named_parameters())
    parameters = (
        (lambda name, _: name in only) if how == "predicate" else (params[name] for name in only)
    )
    want = expected_for(
        p, eta=(1, 0, -1), rank=3, primary_weight=0.2, auxiliary_weight=0.5, only=only
    )
    guide = step(p, primary_weight=0.2, auxiliary_weight=0.5, parameters=parameters)
    assert list(guide.shared_parameters) == only
    assert error(p.grads(), want.grads) <= 1e-10
    g_p, g_a = gradients(p.losses().mean(), p.model), gradients(p.loss(), p.model)
    assert torch.equal(
        params["body.0.bias"].grad, 0.5 * g_a["body.0.bias"] + 0.2 * g_p["body.0.bias"]
    )


def test_auxiliary_heads_of_several_tasks_get_plain_gradients():
    p = problem("mlp", torch.float64)
    p.model.third = nn.Linear(6, 2).double()

    def tasks():
        return {"a": p.loss(), "b": p.model.third(p.model.body(p.xa)).square().mean()}

    want = expected(
        p.model, p.losses(), tasks(), eta=(1, 0, -1), rank=3, auxiliary_weight={"a": 2.0, "b": 0.5}
    )
    guide = Guide(p.model, eta=Eta(1, 0, -1), rank=3, auxiliary_weight={"a": 2.0, "b": 0.5})
    guide.backward(primary=p.losses(), auxiliary=tasks())
    assert error(p.grads(), want.grads) <= 1e-10
    assert torch.equal(
        p.model.third.bias.grad, 0.5 * gradients(tasks()["b"], p.model)["third.bias"]
    )


def test_sparse_gradients_are_allowed_for_parameters_that_are_left_out():
    """An embedding with sparse gradients trains as usual once it does not take part."""
    model = TwoHeads(
        nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten(), nn.Linear(12, 5)), 5
    )
    x = torch.arange(8).reshape(2, 4)

    def losses():
        return model(x, "primary").square().mean(1), model(x, "auxiliary").mean()

    g_p, g_a = (gradients(loss.mean(), model)["body.0.weight"] for loss in losses())
    guide = Guide(
        model,
        eta=Eta(1, 1, -1),
        rank=2,
        primary_weight=0.3,
        parameters=lambda name, _: "body.2" in name,
    )
    guide.backward(*losses())
    got = model.body[0].weight.grad
    assert got.is_sparse
    assert torch.equal(got.to_dense(), g_a.to_dense() + 0.3 * g_p.to_dense())


def test_tensors_outside_of_the_model_get_no_gradient():
    """Neither an input that requires a gradient nor a foreign parameter gets one."""
    p = problem("mlp")
    stranger = nn.Parameter(torch.ones(()))
    p.xa.requires_grad_()
    Guide(p.model, eta=Eta(1, 1, 1), rank=3).backward(
        primary=stranger * p.losses(), auxiliary=stranger * p.loss()
    )
    assert stranger.grad is None
    assert p.xa.grad is None


@pytest.mark.parametrize("expanded", [True, False])
def test_gradients_do_not_share_memory(expanded):
    """Autograd returns one tensor for both parameters of this head."""
    model = nn.ParameterDict({name: torch.ones(3) for name in ("body", "left", "right")})
    guide = Guide(model, eta=Eta(1, 1, 0), rank=2)
    both = model["left"] + model["right"]
    loss = both.sum() if expanded else both.square().sum()
    guide.backward((torch.randn(4, 3) @ model["body"]).square(), model["body"].sum() + loss)
    before = model["right"].grad.clone()
    model["left"].grad.mul_(2)
    assert torch.equal(model["right"].grad, before)


def test_a_frozen_layer_is_no_forgotten_zero_grad(recwarn):
    model, x = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), torch.randn(6, 4)
    guide = Guide(model, eta=Eta(1, 1, 0), rank=2, refresh_every=100)
    for number in range(4):
        model[0].requires_grad_(number == 0)  # it keeps its gradients
        model[1].zero_grad()
        guide.backward(model(x).square().mean(1), model(-x).mean())
    assert not [found for found in recwarn if found.category is AccumulationWarning]
    with pytest.warns(AccumulationWarning):
        guide.backward(model(x).square().mean(1), model(-x).mean())
