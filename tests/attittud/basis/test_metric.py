"""metric="adam": projections are orthogonal for gradients divided by what Adam divides them by."""

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from attittud.basis.metric import adam_scale
from tests.helpers.oracle import gradients
from tests.helpers.zoo import problem

ETA = Eta(neutral=1, helpful=0, harmful=0)


def trained(kind=torch.optim.AdamW, steps=3):
    """A problem and its optimizer after some steps."""
    p = problem("mlp", torch.float64, m=9)
    optimizer = kind(p.model.parameters(), lr=0.05)
    for i in range(steps):
        optimizer.zero_grad()
        (p.losses(slice(i, i + 3)).mean() + p.loss()).backward()
        optimizer.step()
    optimizer.zero_grad()
    return p, optimizer


@pytest.mark.parametrize("scope", ["model", "tensor"])
@pytest.mark.parametrize("basis", ["mean", "exact", "sketch"])
def test_the_step_that_adam_makes_does_not_change_the_primary_loss_to_first_order(basis, scope):
    """⟨update, P⁻¹ g_prim⟩ = 0 if g_prim is in the span; over every tensor with scope="tensor"."""
    p, optimizer = trained()
    guide = Guide(
        p.model, eta=ETA, primary_weight=0.0, basis=basis, rank=9, metric="adam", optimizer=optimizer, scope=scope
    )
    report = guide.backward(primary=p.losses(), auxiliary=p.loss())
    update, g_prim = p.grads(), gradients(p.losses().mean(), p.model)
    inner, plain, size = {}, {}, {}
    for name, parameter in guide.shared_parameters.items():
        state = optimizer.state[parameter]
        metric = (state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))).sqrt() + 1e-8
        inner[name] = float((update[name] * g_prim[name] / metric).sum())
        plain[name] = float((update[name] * g_prim[name]).sum())
        size[name] = float(
            (update[name].square() / metric).sum().sqrt() * (g_prim[name].square() / metric).sum().sqrt()
        )
    assert abs(sum(inner.values())) < 1e-10 * sum(size.values())
    if scope == "tensor":
        assert all(abs(inner[name]) < 1e-10 * size[name] + 1e-14 for name in inner)
    assert abs(sum(plain.values())) > 1e-6  # it is another metric than the Euclidean one
    assert float(report.captured_primary) == pytest.approx(1)


def test_before_the_first_step_of_adam_it_is_the_euclidean_metric():
    results = []
    for options in ({"metric": "adam"}, {}):
        p = problem("mlp", torch.float64, m=9)
        optimizer = torch.optim.Adam(p.model.parameters())
        more = {"optimizer": optimizer} if options else {}
        Guide(p.model, eta=ETA, basis="mean", **options, **more).backward(primary=p.losses(), auxiliary=p.loss())
        results.append(p.grads())
    assert all(torch.allclose(results[0][name], results[1][name], atol=1e-12) for name in results[0])


def test_the_moments_of_the_last_refresh_count_and_a_resumed_run_refreshes():
    p, optimizer = trained()
    settings = {"eta": ETA, "basis": "mean", "refresh_every": 5, "metric": "adam", "optimizer": optimizer}
    guide = Guide(p.model, **settings)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    before = guide.subspace.scale.clone()
    optimizer.step()
    optimizer.zero_grad()
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert torch.equal(guide.subspace.scale, before)
    assert not torch.equal(adam_scale(optimizer, guide.subspace.layout), before)
    memory = guide.subspace.scale.data_ptr()
    guide.backward(primary=p.losses(), auxiliary=p.loss(), refresh=True)
    assert torch.equal(guide.subspace.scale, adam_scale(optimizer, guide.subspace.layout))
    assert guide.subspace.scale.data_ptr() == memory  # which a captured CUDA graph reads
    again = Guide(p.model, **settings)
    again.load_state_dict(guide.state_dict())
    assert again.refresh_due and not guide.refresh_due


def test_a_refresh_writes_to_the_addresses_that_a_captured_graph_reads():
    p = trained()[0]
    guide = Guide(p.model, eta=ETA, rank=3, refresh_every=1, include_mean=True, basis_dtype=torch.bfloat16)
    found = []
    for _ in range(2):
        guide.backward(primary=p.losses(), auxiliary=p.loss())
        space = guide.subspace
        found.append([tensor.data_ptr() for tensor in (space.rows, space.active, space.rounding)])
        with torch.no_grad():
            for parameter in p.model.parameters():
                parameter.add_(torch.randn_like(parameter))
        p.model.zero_grad()
    assert found[0] == found[1]


def test_a_wrapped_optimizer_is_unwrapped():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    p, optimizer = trained()
    guide = Guide(p.model, eta=ETA, basis="mean", metric="adam", optimizer=Wrapper(optimizer))
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert guide.basis.optimizer is optimizer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: None, "pass it as optimizer="),
        (lambda model: torch.optim.SGD(model.parameters(), lr=1), "betas and eps"),
    ],
)
def test_an_optimizer_that_is_not_adam_is_refused(make, message):
    p = problem("mlp", torch.float64, m=9)
    with pytest.raises(TypeError, match=message):
        Guide(p.model, eta=ETA, basis="mean", metric="adam", optimizer=make(p.model))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: torch.optim.Adamax(model.parameters()), "exp_avg_sq"),
        (lambda model: torch.optim.Adam([nn.Parameter(torch.zeros(1))]), "is not in the optimizer"),
    ],
)
def test_an_optimizer_without_the_second_moments_is_refused_at_a_refresh(make, message):
    p = problem("mlp", torch.float64, m=9)
    optimizer = make(p.model)
    guide = Guide(p.model, eta=ETA, basis="mean", metric="adam", optimizer=optimizer)
    for parameter in p.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with pytest.raises((TypeError, ValueError), match=message):
        guide.backward(primary=p.losses(), auxiliary=p.loss())


def test_moments_of_an_undone_first_step_are_ignored():
    """A fused Adam under a loss scaler that overflows at once: state of step 0, whose moments have no bias correction."""
    p, optimizer = trained(steps=1)
    for state in optimizer.state.values():
        state["step"].zero_()
        state["exp_avg_sq"].zero_()
    guide = Guide(p.model, eta=ETA, basis="mean", metric="adam", optimizer=optimizer)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert bool((guide.subspace.scale == 1).all())
    assert all(bool(gradient.isfinite().all()) for gradient in p.grads().values())


@pytest.mark.parametrize("scope", ["model", "tensor"])
def test_a_running_mean_averages_gradients_in_their_original_scale(scope):
    """m is the mean of the gradients themselves; only inner products are those of the latest refresh."""
    p, optimizer = trained()
    options = {"basis": "running_mean", "basis_options": {"rate": 0.3}, "refresh_every": 1, "scope": scope}
    guide = Guide(p.model, eta=ETA, primary_weight=0.0, metric="adam", optimizer=optimizer, **options)
    mean = None
    for i in range(3):
        optimizer.zero_grad()
        r = gradients(p.losses(slice(i, i + 4)).mean(), p.model)
        guide.backward(primary=p.losses(slice(i, i + 4)), auxiliary=p.loss())
        names = list(guide.shared_parameters)
        mean = {name: r[name] if mean is None else 0.3 * r[name] + 0.7 * mean[name] for name in names}
        scale = dict(zip(names, guide.subspace.split(guide.subspace.scale), strict=True))
        update = p.grads()
        inner = {name: float((update[name] * mean[name] * scale[name] ** 2).sum()) for name in names}
        sizes = {name: float((mean[name] * scale[name]).norm() * (update[name] * scale[name]).norm()) for name in names}
        if scope == "tensor":
            assert all(abs(inner[name]) <= 1e-9 * sizes[name] + 1e-14 for name in names)
        assert abs(sum(inner.values())) < 1e-9 * sum(sizes.values())
        optimizer.step()
