"""Decompositions that do not wait for the device agree with torch, and so do their bases."""

import pytest
import torch

from attittud import Eta, Guide
from attittud.basis import exact, svd
from attittud.basis.base import orthonormalise_
from attittud.basis.small import _next_round, householder, jacobi, qr, singular
from tests.helpers.watch import Waits
from tests.helpers.zoo import problem

KINDS = ["normal", "graded", "lower", "rank one", "zero", "equal", "tiny"]
every_matrix = pytest.mark.parametrize(
    ("shape", "kind"),
    [
        *(((40, 40), kind) for kind in KINDS),
        *((shape, "normal") for shape in [(1, 1), (7, 4), (4, 7)]),
    ],
    ids=str,
)


def matrix(kind, rows, columns):
    random = torch.Generator().manual_seed(rows + columns)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    a = normal(rows, columns)
    count = min(rows, columns)
    if kind == "graded":  # singular values over 14 decades
        left = torch.linalg.qr(normal(rows, count))[0]
        right = torch.linalg.qr(normal(columns, count))[0]
        a = left * torch.logspace(0, -14, count, dtype=torch.float64) @ right.T
    if kind == "lower":
        a = a.tril()
    if kind == "rank one":
        a = a[:, :1] @ a[:1]
    if kind == "equal":  # all singular values the same
        a = 3 * torch.eye(rows, columns, dtype=torch.float64)
    return a * {"zero": 0.0, "tiny": 1e-150}.get(kind, 1.0)


@every_matrix
def test_singular_values_and_vectors_equal_torchs(shape, kind):
    a = matrix(kind, *shape)
    sizes, right = jacobi(a)
    want = torch.linalg.svdvals(a)
    assert sizes.shape == want.shape and right.shape == (min(shape), shape[1])
    scale = float(want[0]) or 1.0
    torch.testing.assert_close(sizes / scale, want / scale, rtol=0, atol=1e-13)
    known = right[sizes > 1e-12 * scale]
    torch.testing.assert_close(
        known @ known.T, torch.eye(len(known), dtype=a.dtype), rtol=0, atol=1e-11
    )
    # AᵀA v = s² v
    for size, v in zip(sizes / scale, right, strict=True):
        assert float((a.T @ (a @ v) / scale**2 - size**2 * v).norm()) < 1e-13 * len(v)


@every_matrix
def test_thin_qr_equals_torchs(shape, kind):
    a = matrix(kind, *shape)
    q, r = householder(a)
    assert q.shape == (shape[0], min(shape)) and r.shape == (min(shape), shape[1])
    scale = float(a.abs().max()) or 1.0
    torch.testing.assert_close(q @ (r / scale), a / scale, rtol=0, atol=1e-13)
    torch.testing.assert_close(q.T @ q, torch.eye(min(shape), dtype=a.dtype), rtol=0, atol=1e-13)
    assert torch.equal(r, r.triu())


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_rows_that_are_nearly_alike_become_orthonormal(dtype, rounding):
    """The Gram matrix squares their condition: after a single pass products are 1e-7."""
    random = torch.Generator().manual_seed(0)
    parts = torch.randn(7, 2000, generator=random, dtype=torch.float64)
    rows = (parts[:1] + 1e-4 * parts[1:]).to(dtype)
    orthonormalise_(rows)
    products = rows.double() @ rows.double().T
    assert (products - torch.eye(6)).abs().max() < rounding


@pytest.mark.parametrize("count", [2, 6, 40])
def test_every_pair_of_columns_is_rotated_in_a_sweep(count):
    order = _next_round(count, torch.device("cpu")).tolist()
    players = list(range(count))
    met = set()
    for _ in range(count - 1):
        met |= {frozenset(players[i : i + 2]) for i in range(0, count, 2)}
        players = [players[i] for i in order]
    assert len(met) == count * (count - 1) // 2 and players == list(range(count))


def test_on_a_cpu_torchs_own_decompositions_are_used():
    a = matrix("normal", 9, 5)
    assert torch.equal(singular(a)[0], torch.linalg.svd(a, full_matrices=False)[1])
    assert torch.equal(qr(a)[1], torch.linalg.qr(a)[1])


@pytest.mark.parametrize("basis", ["svd", "exact"])
def test_bases_are_the_same_and_nothing_waits_for_the_device(basis, monkeypatch):
    """Jacobi and reflections replace torch's decompositions, as on a GPU."""
    reports, updates = [], []
    for own in (False, True):
        if own:
            monkeypatch.setattr(exact, "singular", jacobi)
            monkeypatch.setattr(svd, "singular", jacobi)
            monkeypatch.setattr(svd, "qr", householder)
        torch.manual_seed(0)
        p = problem("mlp")
        guide = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3, basis=basis, engine="loop")
        guide.backward(primary=p.losses(), auxiliary=p.loss())
        primary, auxiliary = p.losses(), p.loss()
        with Waits() as waits:
            report = guide.backward(primary=primary, auxiliary=auxiliary, refresh=True)
        reports.append(report.to_dict())
        updates.append(torch.cat([q.grad.flatten() for q in p.model.parameters()]))
        if own:
            assert waits.seen == []
    torch.testing.assert_close(updates[0], updates[1], rtol=1e-4, atol=1e-6)
    assert reports[0]["captured_primary"] == pytest.approx(reports[1]["captured_primary"], rel=1e-5)
