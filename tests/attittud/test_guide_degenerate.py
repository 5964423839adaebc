"""Inputs at the edge: each has one defined outcome, and nobody is flooded with warnings."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from attittud.basis.base import orthonormalise_
from tests.helpers.degenerate import few_warnings, guide_for
from tests.helpers.oracle import distance, error, expected, expected_for, gradients
from tests.helpers.zoo import problem

__all__ = ["few_warnings"]

ETA = (1, 0.5, -1)


def finite(report) -> bool:
    values = report.to_dict().values()
    return all(torch.isfinite(torch.tensor(float(value))) for value in values)


def assert_basis(V: torch.Tensor, rank: int, tolerance: float) -> None:
    """Exactly ``rank`` orthonormal rows, the others exactly zero."""
    live = V[V.any(1)]
    assert len(live) == rank
    assert (live @ live.T - torch.eye(rank, dtype=V.dtype)).abs().max() < tolerance


@pytest.mark.parametrize("examples", [[0, 1, 0, 1, 1, 0], [0, 1, 2]], ids=["repeated", "few"])
@pytest.mark.parametrize(
    ("basis", "dtype"),
    [("sketch", torch.float32), ("svd", torch.float64), ("exact", torch.float64)],
    ids=str,
)
def test_there_are_as_many_directions_as_different_examples(basis, dtype, examples):
    """With fewer of them than the rank; the update is the one that they give."""
    double = problem("mlp", torch.float64)
    double = replace(double, xp=double.xp[examples], yp=double.yp[examples])
    p = double.to(dtype)
    guide = guide_for(p, basis=basis, rank=5)
    report = guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert report.effective_rank == len(set(examples))
    V = guide.state_dict()["basis"]
    assert len(V) <= len(examples)
    assert_basis(V, len(set(examples)), 1e-10 if dtype == torch.float64 else 1e-5)
    want = expected_for(double, eta=ETA, basis=basis, rank=5, primary_weight=0.1)
    assert error(p.grads(), want.grads) <= (1e-10 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize(
    ("basis", "include_mean"), [("sketch", True), ("exact", False), ("mean", False)]
)
def test_a_jacobian_of_zeros_makes_everything_neutral(basis, include_mean):
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


@pytest.mark.parametrize(
    ("basis", "sizes", "include_mean"),
    [
        ("sketch", (1e-18, 1e10), True),
        ("sketch", (1e10, 1e-18), False),
        ("exact", (1e10, 1e10), True),
        ("mean", (1e-18, 1e-18), False),
        ("canonical", (1e-18, 1e10), False),
    ],
    ids=str,
)
def test_gradients_of_any_size_are_split_as_in_float64(basis, sizes, include_mean):
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
        found = getattr(report, name).item() / auxiliary_size
        assert found == pytest.approx(norm.item(), rel=1e-3, abs=1e-3)
    cosine = torch.cosine_similarity(g_a / auxiliary_size, want.g_p / primary_size, dim=0)
    assert report.cosine.item() == pytest.approx(cosine.item(), abs=1e-4)
    assert finite(report)


@pytest.mark.parametrize(("basis", "bad"), [("sketch", float("nan")), ("canonical", float("inf"))])
def test_an_auxiliary_loss_with_nan_reaches_grad(basis, bad):
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
    want = expected_for(p, eta=ETA, basis=basis, rank=4, primary_weight=0.1)
    assert error(p.grads(), want.grads) < 1e-10


def network() -> nn.Module:
    """Roundings of BatchNorm in float32: rows beyond the examples are not zero by themselves."""
    torch.manual_seed(0)
    layers, width = list[nn.Module](), 3
    for stride in (1, 2, 1):
        layers += [nn.Conv2d(width, 16, 3, stride, 1), nn.BatchNorm2d(16), nn.ReLU()]
        width = 16
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def losses_of(model: nn.Module, m: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(m)
    x = torch.randn(m, 3, 12, 12, generator=generator)
    y = torch.randint(5, (m,), generator=generator)
    return nn.functional.cross_entropy(model(x), y, reduction="none")


@pytest.mark.parametrize(
    ("basis", "m", "rank"), [("sketch", 8, 10), ("svd", 16, 50), ("exact", 2, 30)]
)
def test_a_basis_has_no_more_directions_than_examples(basis, m, rank):
    model = network()
    guide = Guide(model, eta=Eta(*ETA), rank=rank, basis=basis, engine="loop")
    for size in (m, m + 3, m):
        report = guide.backward(
            primary=losses_of(model, size), auxiliary=losses_of(model, 20).mean(), refresh=True
        )
        assert report.effective_rank <= min(size, rank)
        V = guide.subspace.rows
        live = V[V.any(1)]
        assert len(live) == report.effective_rank
        assert (live @ live.T - torch.eye(len(live))).abs().max() < 1e-5


def test_dependent_rows_become_zero_even_after_a_nearly_dependent_row():
    """Seven different examples, some of them twice: an eighth direction is rounding."""
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        examples = torch.randn(7, 50, generator=generator)
        jacobian = torch.cat([examples, examples[torch.randint(7, (6,), generator=generator)]])
        rows = torch.randn(12, 13, generator=generator) @ jacobian
        orthonormalise_(rows)
        assert torch.linalg.vector_norm(rows, dim=1).count_nonzero() == 7, seed
