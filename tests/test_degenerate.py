"""Inputs at the edge: each has one defined outcome, and nobody is flooded with warnings."""

import warnings
from dataclasses import replace

import pytest
import torch
from oracle import distance, error, expected, gradients
from zoo import problem

from attittud import Eta, Guide

ETA = (1, 0.5, -1)
STORED = ["sketch", "svd", "exact", "random"]
FROM_J = ["sketch", "svd", "exact"]


def guide_for(p, **options) -> Guide:
    return Guide(p.model, **{"eta": Eta(*ETA), "rank": 4, "primary_weight": 0.1, "refresh_every": 3} | options)


def finite(report) -> bool:
    values = report.to_dict().values()
    return all(torch.isfinite(torch.tensor(float(value))) for value in values)


def assert_basis(V: torch.Tensor, rank: int, tolerance: float = 1e-10) -> None:
    """Exactly ``rank`` orthonormal rows, the others exactly zero."""
    live = V[V.any(1)]
    assert len(live) == rank
    assert (live @ live.T - torch.eye(rank, dtype=V.dtype)).abs().max() < tolerance


@pytest.fixture(autouse=True)
def few_warnings():
    """At most one warning in a test, however many steps it takes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    assert len(caught) <= 1, [str(w.message) for w in caught]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("basis", FROM_J)
def test_duplicated_examples(basis, dtype):
    """Six examples, two of them distinct: two directions, and the update they give."""
    double = problem("mlp", torch.float64)
    copies = [0, 1, 0, 1, 1, 0]
    double = replace(double, xp=double.xp[copies], yp=double.yp[copies])
    p = double.to(dtype)
    guide = guide_for(p, basis=basis)
    report = guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert report.effective_rank == 2
    assert_basis(guide.state_dict()["basis"], 2, 1e-10 if dtype == torch.float64 else 1e-5)
    want = expected(double.model, double.losses(), double.loss(), eta=ETA, basis=basis, rank=4, primary_weight=0.1)
    assert error(p.grads(), want.grads) <= (1e-10 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("basis", FROM_J)
def test_near_duplicates(basis, dtype):
    """Examples that differ by rounding add no direction: noise is not normalised."""
    p = problem("mlp", dtype)
    eps = torch.finfo(dtype).eps
    p = replace(
        p, xp=torch.cat([p.xp[:2]] * 3) * (1 + eps * torch.arange(6, dtype=dtype))[:, None], yp=p.yp[:2].repeat(3)
    )
    guide = guide_for(p, basis=basis)
    assert guide.backward(primary=p.losses(), auxiliary=p.loss()).effective_rank == 2


@pytest.mark.parametrize("basis", FROM_J)
def test_rank_above_the_number_of_examples(basis):
    p = problem("mlp", torch.float64, m=3)
    want = expected(p.model, p.losses(), p.loss(), eta=ETA, basis=basis, rank=8, primary_weight=0.1)
    guide = guide_for(p, basis=basis, rank=8)
    report = guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert report.effective_rank == 3
    assert guide.state_dict()["basis"].shape[0] == 8
    assert_basis(guide.state_dict()["basis"], 3)
    assert error(p.grads(), want.grads) <= 1e-10


@pytest.mark.parametrize("basis", ["sketch", "exact", "random"])
def test_rank_above_the_number_of_parameters(basis):
    p = problem("mlp", torch.float64, m=8)
    only = ["body.2.bias"]  # six numbers
    guide = guide_for(p, basis=basis, rank=7, parameters=lambda name, _: name in only)
    report = guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert report.effective_rank == 6
    assert report.captured_auxiliary.item() == pytest.approx(1)
    assert report.neutral.item() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("include_mean", [False, True], ids=["", "include_mean"])
@pytest.mark.parametrize("basis", ["sketch", "svd", "exact", "mean"])
def test_all_zero_jacobian(basis, include_mean):
    """No direction to compare in: everything is neutral."""
    p = problem("mlp")
    g_a = gradients(p.loss(), p.model)
    guide = guide_for(p, eta=Eta(0.5, 0, -1), basis=basis, include_mean=include_mean)
    report = guide.backward(primary=0.0 * p.losses(), auxiliary=p.loss())
    assert report.effective_rank == 0
    assert report.skipped_refreshes == 0
    assert finite(report)
    for name, x in p.model.body.named_parameters(prefix="body"):
        assert torch.equal(x.grad, 0.5 * g_a[name]), name


def test_zero_auxiliary_gradient():
    p = problem("mlp")
    g_p = gradients(p.losses().mean(), p.model)
    report = guide_for(p, include_mean=True).backward(primary=p.losses(), auxiliary=0.0 * p.loss())
    assert finite(report)
    for name, x in p.model.body.named_parameters(prefix="body"):
        assert torch.equal(x.grad, 0.1 * g_p[name]), name


@pytest.mark.parametrize("include_mean", [False, True], ids=["", "include_mean"])
@pytest.mark.parametrize("sizes", [(1e-18, 1e-18), (1e-18, 1e10), (1e10, 1e-18), (1e10, 1e10)], ids=str)
@pytest.mark.parametrize("basis", ["sketch", "svd", "exact", "mean", "canonical"])
def test_gradients_of_any_size(basis, sizes, include_mean):
    """float32, where squares and products of such gradients leave its range."""
    primary_size, auxiliary_size = sizes
    p = problem("mlp", seed=3)
    double = p.to(torch.float64)
    want = expected(
        double.model, primary_size * double.losses(), auxiliary_size * double.loss(), eta=ETA, basis=basis, rank=4,
        primary_weight=0.1, include_mean=include_mean,
    )  # fmt: skip
    assert want.margin > 1e-5
    guide = guide_for(p, basis=basis, include_mean=include_mean)
    report = guide.backward(primary=primary_size * p.losses(), auxiliary=auxiliary_size * p.loss())
    for name in want.names:
        assert distance(p.grads()[name], want.grads[name]) <= 1e-4, name
    assert report.effective_rank == len(want.V)
    part, g_a = want.parts["auxiliary"], want.g_a["auxiliary"]
    for name in ("neutral", "helpful", "harmful"):
        norm = getattr(part, name).norm() / auxiliary_size
        assert getattr(report, name).item() / auxiliary_size == pytest.approx(norm.item(), rel=1e-3, abs=1e-3)
    cosine = torch.cosine_similarity(g_a / auxiliary_size, want.g_p / primary_size, dim=0)
    assert report.cosine.item() == pytest.approx(cosine.item(), abs=1e-4)
    assert finite(report)


def nan_at(losses: torch.Tensor, i: int = 2) -> torch.Tensor:
    factor = torch.ones_like(losses)
    factor[i] = float("nan")
    return losses * factor


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("basis", [*STORED, "mean"])
def test_refresh_with_a_broken_example_keeps_the_old_basis(basis, bad, engine, few_warnings):
    p = problem("mlp", torch.float64)
    guide = guide_for(p, basis=basis, engine=engine)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    V = guide.state_dict()["basis"].clone()
    factor = torch.tensor([1, 1, bad, 1, 1, 1], dtype=torch.float64)
    report = guide.backward(primary=p.losses() * factor, auxiliary=p.loss(), refresh=True)
    # As with Tensor.backward the broken gradient is seen by whoever looks at .grad.
    assert not all(g.isfinite().all() for g in p.grads().values())
    if basis != "random":  # which does not look at the losses
        assert report.skipped_refreshes == 1
        assert torch.equal(guide.state_dict()["basis"], V)
    V = guide.state_dict()["basis"].clone()
    p.model.zero_grad()
    report = guide.backward(primary=p.losses(), auxiliary=p.loss(), refresh=False)
    want = expected(p.model, p.losses(), p.loss(), eta=ETA, basis=V, primary_weight=0.1)
    assert error(p.grads(), want.grads) <= 1e-10
    assert not few_warnings  # nobody has read a report
    report.to_dict()
    assert len(few_warnings) == (basis != "random")


@pytest.mark.parametrize("basis", ["sketch", "svd", "exact", "mean"])
def test_basis_losses_that_break_do_not_touch_the_step(basis):
    p = problem("mlp", torch.float64)
    guide = guide_for(p, basis=basis)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    V = guide.state_dict()["basis"].clone()
    p.model.zero_grad()
    guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=lambda: nan_at(p.losses()), refresh=True)
    want = expected(p.model, p.losses(), p.loss(), eta=ETA, basis=V, primary_weight=0.1)
    assert error(p.grads(), want.grads) <= 1e-10


@pytest.mark.parametrize("basis", ["sketch", "svd", "exact", "mean"])
def test_first_refresh_that_fails_leaves_everything_neutral(basis):
    p = problem("mlp")
    g_p, g_a = gradients(p.losses().mean(), p.model), gradients(p.loss(), p.model)
    guide = guide_for(p, basis=basis, eta=Eta(0.5, 0, -1))
    report = guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=lambda: nan_at(p.losses()))
    assert report.skipped_refreshes == 1
    assert report.effective_rank == 0
    for name, x in p.model.body.named_parameters(prefix="body"):
        assert torch.equal(x.grad, 0.5 * g_a[name] + 0.1 * g_p[name]), name
    later = guide.backward(primary=p.losses(), auxiliary=p.loss(), refresh=True)
    assert later.effective_rank > 0
    assert later.skipped_refreshes == 1


@pytest.mark.parametrize("basis", ["sketch", "mean", "canonical"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_auxiliary_loss(basis, bad):
    """It reaches ``.grad`` where plain backward would show it, and is gone with the next step."""
    p = problem("mlp", torch.float64)
    guide = guide_for(p, basis=basis)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    p.model.zero_grad()
    report = guide.backward(primary=p.losses(), auxiliary=bad * p.loss())
    assert report.skipped_refreshes == 0
    plain = gradients(bad * p.loss(), p.model)
    for name, g in p.grads().items():
        if plain[name] is not None:
            broken = ~plain[name].isfinite()
            assert broken.any(), name
            assert not g[broken].isfinite().any(), name
    assert p.model.heads["primary"].weight.grad.isfinite().all()
    p.model.zero_grad()
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    want = expected(p.model, p.losses(), p.loss(), eta=ETA, basis=basis, rank=4, primary_weight=0.1)
    assert error(p.grads(), want.grads) < 1e-10


def test_warnings_come_once_per_failed_refresh(few_warnings):
    p = problem("mlp")
    guide = guide_for(p, refresh_every=1)
    reports = [guide.backward(primary=nan_at(p.losses()), auxiliary=p.loss()) for _ in range(20)]
    assert not few_warnings
    for _ in range(3):
        assert reports[-1].to_dict()["skipped_refreshes"] == 20
    guide.backward(primary=p.losses(), auxiliary=p.loss()).to_dict()
    assert len(few_warnings) == 1
    assert issubclass(few_warnings[0].category, UserWarning)
    assert "20" in str(few_warnings[0].message)


def test_healthy_training_is_silent(few_warnings):
    p = problem("mlp", m=3)
    guide = guide_for(p, rank=8, refresh_every=2)
    for _ in range(6):
        guide.backward(primary=p.losses(), auxiliary=p.loss()).to_dict()
    assert not few_warnings


@pytest.mark.parametrize("basis", ["exact", "svd"])
def test_equal_singular_values(basis):
    """Any rotation among them is right; the span and its orthonormality are not up for choice."""
    theta = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    model = torch.nn.ParameterList([theta])
    guide = Guide(model, eta=Eta(1, 0, 0), basis=basis, rank=3)
    guide.backward(primary=(theta * torch.eye(5, dtype=torch.float64)[:3]).sum(1), auxiliary=theta.sum())
    assert torch.allclose(theta.grad, torch.tensor([1 / 3, 1 / 3, 1 / 3, 1, 1], dtype=torch.float64))
    assert_basis(guide.state_dict()["basis"], 3)
