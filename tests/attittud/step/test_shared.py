"""The gradient that each parameter gets depends on which losses reach it, not on its name."""

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from tests.helpers.oracle import error, expected, gradients
from tests.helpers.zoo import TwoHeads, problem


def step(p, **options):
    guide = Guide(p.model, **{"eta": Eta(1, 0, -1), "rank": 3} | options)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    return guide


@pytest.mark.parametrize("weight", [0.0, 0.1, 5.0])
def test_heads_do_not_depend_on_eta_or_primary_weight(weight):
    p = problem("mlp", torch.float64)
    g_p, g_a = gradients(p.losses().mean(), p.model), gradients(p.loss(), p.model)
    step(p, primary_weight=weight, auxiliary_weight=0.5)
    for name, parameter in p.model.heads.named_parameters(prefix="heads"):
        want = g_p[name] if "primary" in name else 0.5 * g_a[name]
        assert torch.equal(parameter.grad, want), name


def test_shared_parameters_are_those_both_reach():
    p = problem("frozen")
    shared = step(p).shared_parameters
    assert list(shared) == ["body.0.bias", "body.2.weight", "body.2.bias"]
    assert shared["body.0.bias"] is p.model.body[0].bias


def test_a_basis_on_another_device_is_computed_again():
    """As after `model.cuda()`, which keeps the parameters' objects."""
    p = problem("mlp", torch.float64)
    guide = step(p, refresh_every=100)
    guide.subspace.layout.device = torch.device("meta")
    for refreshed in (True, False):
        p.model.zero_grad()
        assert guide.backward(primary=p.losses(), auxiliary=p.loss()).refreshed is refreshed
        assert guide.subspace.layout.device.type == "cpu"


def test_torch_may_swap_gradients_when_it_converts_a_model():
    """It refuses tensors that have a weak reference."""
    p = problem("mlp", torch.float64)
    step(p)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        p.model.float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert {parameter.grad.dtype for parameter in p.model.parameters()} == {torch.float32}


def test_tied_parameters_count_once():
    p = problem("tied_module")
    assert list(step(p).shared_parameters) == ["embedding.weight", "mix.weight", "mix.bias"]


@pytest.mark.parametrize("how", ["predicate", "iterable"])
def test_parameters_argument_restricts_the_decomposition(how):
    """Parameters that are left out get the plain weighted sum, whatever Eta says."""
    p = problem("mlp", torch.float64)
    only = ["body.0.weight", "body.2.bias"]
    params = dict(p.model.named_parameters())
    parameters = (lambda name, _: name in only) if how == "predicate" else (params[name] for name in only)
    want = expected(
        p.model, p.losses(), p.loss(), eta=(1, 0, -1), rank=3, primary_weight=0.2, auxiliary_weight=0.5, only=only
    )
    guide = step(p, primary_weight=0.2, auxiliary_weight=0.5, parameters=parameters)
    assert list(guide.shared_parameters) == only
    assert error(p.grads(), want.grads) <= 1e-10
    g_p, g_a = gradients(p.losses().mean(), p.model), gradients(p.loss(), p.model)
    assert torch.equal(params["body.0.bias"].grad, 0.5 * g_a["body.0.bias"] + 0.2 * g_p["body.0.bias"])


def test_a_task_may_reach_fewer_parameters():
    """A parameter that only some tasks reach is shared all the same."""
    p = problem("mlp", torch.float64)
    tasks = {"all": p.loss(), "first": p.model.body[0](p.xa).square().mean()}
    want = expected(p.model, p.losses(), tasks, eta=(1, 0, -1), rank=3)
    guide = Guide(p.model, eta=Eta(1, 0, -1), rank=3)
    guide.backward(primary=p.losses(), auxiliary={"all": p.loss(), "first": p.model.body[0](p.xa).square().mean()})
    assert set(guide.shared_parameters) == set(want.names)
    assert error(p.grads(), want.grads) <= 1e-10


def test_auxiliary_heads_of_several_tasks_get_plain_gradients():
    p = problem("mlp", torch.float64)
    p.model.third = nn.Linear(6, 2).double()

    def tasks():
        return {"a": p.loss(), "b": p.model.third(p.model.body(p.xa)).square().mean()}

    want = expected(p.model, p.losses(), tasks(), eta=(1, 0, -1), rank=3, auxiliary_weight={"a": 2.0, "b": 0.5})
    guide = Guide(p.model, eta=Eta(1, 0, -1), rank=3, auxiliary_weight={"a": 2.0, "b": 0.5})
    guide.backward(primary=p.losses(), auxiliary=tasks())
    assert error(p.grads(), want.grads) <= 1e-10
    assert torch.equal(p.model.third.bias.grad, 0.5 * gradients(tasks()["b"], p.model)["third.bias"])


def test_sparse_gradients_are_allowed_for_parameters_that_are_left_out():
    """An embedding with sparse gradients trains as usual once it does not take part."""
    model = TwoHeads(nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten(), nn.Linear(12, 5)), 5)
    x = torch.arange(8).reshape(2, 4)

    def losses():
        return model(x, "primary").square().mean(1), model(x, "auxiliary").mean()

    g_p, g_a = (gradients(loss.mean(), model)["body.0.weight"] for loss in losses())
    guide = Guide(model, eta=Eta(1, 1, -1), rank=2, primary_weight=0.3, parameters=lambda name, _: "body.2" in name)
    guide.backward(*losses())
    got = model.body[0].weight.grad
    assert got.is_sparse
    assert torch.equal(got.to_dense(), g_a.to_dense() + 0.3 * g_p.to_dense())


def test_tensors_outside_of_the_model_get_no_gradient():
    """Only the model's ``.grad`` is written: not an input's that requires a gradient, and not a foreign parameter's."""
    p = problem("mlp")
    stranger = nn.Parameter(torch.ones(()))
    p.xa.requires_grad_()
    Guide(p.model, eta=Eta(1, 1, 1), rank=3).backward(primary=stranger * p.losses(), auxiliary=stranger * p.loss())
    assert stranger.grad is None
    assert p.xa.grad is None


class Offsets(nn.Module):
    """A head of two summands, for which autograd returns the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = (
            nn.Linear(4, 3),
            nn.Parameter(torch.zeros(6, 3)),
            nn.Parameter(torch.zeros(6, 3)),
        )

    def forward(self, x):
        return self.body(x) + (self.first + self.second)


@pytest.mark.parametrize("order", ["as the parameters", "another order of memory"])
def test_parameters_that_get_the_same_gradient_do_not_share_its_memory(order):
    """An optimizer or clipping writes into `.grad`."""
    torch.manual_seed(0)
    model, x = Offsets(), torch.randn(6, 4)
    if order != "as the parameters":
        model.first.data = model.first.data.t().contiguous().t()
    guide = Guide(model, eta=Eta(1, 1, 0), rank=2)
    guide.backward(primary=model(x).square().sum(1), auxiliary=model.body(x).sum())
    assert torch.equal(model.first.grad, model.second.grad) and model.first.grad.abs().sum() > 0
    assert (model.first.grad.stride(), model.second.grad.stride()) == (model.first.stride(), model.second.stride())
    kept = model.second.grad.clone()
    model.first.grad.zero_()
    assert torch.equal(model.second.grad, kept)
