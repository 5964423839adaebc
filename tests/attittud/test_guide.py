"""Whole steps of a ``Guide`` against the explicit-Jacobian oracle in float64."""

import gc
import weakref

import pytest
import torch

from attittud import Eta, Guide, preset
from tests.helpers.oracle import (
    BASES,
    FULL_BASES,
    PRESETS,
    distance,
    error,
    expected,
    expected_for,
    jacobian,
    shared_names,
)
from tests.helpers.steps import step, stored_basis
from tests.helpers.zoo import Problem, problem

M = 6
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
SEED = 3  # data on which no direction is near a sign change
SETTINGS = [
    *((b, 4 if b in FULL_BASES else 10, False, torch.float64) for b in BASES),
    *((b, k, False, torch.float64) for b in ("sketch", "exact") for k in (1, M)),
    *((b, 4, True, torch.float64) for b in ("sketch", "svd", "random")),
    ("canonical", 10, True, torch.float64),
    *((b, 4, True, torch.float32) for b in ("sketch", "exact")),
]


def test_oracle_jacobian_has_gradients_of_single_examples():
    """The oracle itself: rows of the joint graph = batches of one."""
    p = problem("mlp", torch.float64, m=M)
    names = shared_names(p.model, p.losses(), p.loss())
    J = jacobian(p.losses(), p.model, names)
    ones = torch.cat([jacobian(p.losses(slice(i, i + 1)), p.model, names) for i in range(M)])
    assert distance(J, ones) < 1e-14


@pytest.mark.parametrize(("basis", "rank", "include_mean", "dtype"), SETTINGS, ids=str)
def test_every_basis_and_preset_equals_the_oracle(basis, rank, include_mean, dtype):
    reference = problem("mlp", torch.float64, m=M, seed=SEED)
    primary, auxiliary = reference.losses(), reference.loss()
    chosen = {name: preset(name) for name in PRESETS}
    chosen["odd"] = {"eta": Eta(0.1, 0.7, -0.3), "primary_weight": 0.3}
    settings = {"basis": basis, "rank": rank, "include_mean": include_mean}
    for name, (eta, weight) in (PRESETS | {"odd": ((0.1, 0.7, -0.3), 0.3)}).items():
        p = reference.to(dtype)
        guide = step(p, engine="loop", **chosen[name] | settings)
        options = settings | {"eta": eta, "primary_weight": weight}
        if basis == "random":
            names = shared_names(reference.model, primary, auxiliary)
            options["basis"] = stored_basis(guide, names)
        want = expected(reference.model, primary, auxiliary, **options)
        assert want.margin > (1e-9 if dtype == torch.float64 else 1e-5), (
            "the problem is too near a sign change"
        )
        assert error(p.grads(), want.grads) <= TOLERANCE[dtype], name


@pytest.mark.parametrize(
    ("basis", "include_mean"), [("sketch", True), ("mean", False), ("canonical", False)]
)
def test_named_auxiliary_tasks_equal_the_oracle(basis, include_mean):
    """Each task keeps its signs, Eta and weight; one reaches only a part of the body."""

    def tasks(q: Problem):
        first = q.model.body[0](q.xa[:4]).square().mean()
        return {"label": q.loss(), "early": first, "opposite": -0.5 * q.losses(slice(2, 6)).mean()}

    eta = {"label": (1, 1, -1), "early": (0.5, 0, 2), "opposite": (0, 1, -0.25)}
    weight = {"label": 1.0, "early": 0.2, "opposite": 3.0}
    p = problem("mlp", torch.float64, m=M, seed=SEED)
    options = {
        "auxiliary_weight": weight,
        "basis": basis,
        "rank": 4,
        "include_mean": include_mean,
        "primary_weight": 0.3,
    }
    want = expected(p.model, p.losses(), tasks(p), eta=eta, **options)
    guide = Guide(p.model, eta={t: Eta(*e) for t, e in eta.items()}, engine="loop", **options)
    guide.backward(primary=p.losses(), auxiliary=tasks(p))
    assert error(p.grads(), want.grads) <= 1e-10
    one_loss = {"eta": (1, 1, -1), "basis": basis, "rank": 4, "primary_weight": 0.3}
    summed = expected(p.model, p.losses(), sum(tasks(p).values()), **one_loss)
    assert error(p.grads(), summed.grads) > 1e-2  # so the test would notice tasks judged as one


def test_one_eta_and_weight_apply_to_all_tasks():
    p = problem("mlp", torch.float64)
    losses = p.losses(), {"a": p.loss(), "b": p.loss(slice(3))}
    want = expected(p.model, *losses, eta=(1, 0, -1), auxiliary_weight=0.7, rank=3)
    guide = Guide(p.model, eta=Eta(1, 0, -1), auxiliary_weight=0.7, rank=3)
    guide.backward(*losses)
    assert error(p.grads(), want.grads) <= 1e-10


@pytest.mark.parametrize("basis", ["sketch", "exact"])
def test_steps_between_refreshes_use_the_old_basis(basis):
    """The basis is new in every third step, and the signs come from the current g_p."""
    p = problem("mlp", torch.float64, m=9)
    guide = Guide(
        p.model, eta=Eta(1, 1, -1), primary_weight=0.1, basis=basis, rank=3, refresh_every=3, seed=5
    )
    optimizer = torch.optim.SGD(p.model.parameters(), lr=0.5)
    V = None
    for i in range(7):
        at = slice(i % 3, i % 3 + 7)
        optimizer.zero_grad()
        want = expected(
            p.model, p.losses(at), p.loss(at), eta=(1, 1, -1), primary_weight=0.1, rank=3,
            basis=basis if i % 3 == 0 else V, seed=5, refresh_index=i // 3,
        )  # fmt: skip
        V = want.V
        report = guide.backward(primary=p.losses(at), auxiliary=p.loss(at))
        assert report.refreshed == (i % 3 == 0)
        assert error(p.grads(), want.grads) <= 1e-10
        optimizer.step()


@pytest.mark.parametrize("basis", ["sketch", "svd"])
def test_basis_losses_build_the_basis_and_primary_losses_decide_the_signs(basis):
    p, other = problem("mlp", torch.float64), problem("mlp", torch.float64, m=5, seed=11)
    other.model = p.model
    guide = Guide(p.model, eta=Eta(1, 0, -1), basis=basis, rank=3, primary_weight=0.2)
    want = expected_for(
        p, eta=(1, 0, -1), basis=basis, rank=3, primary_weight=0.2, basis_losses=other.losses()
    )
    guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=other.losses)
    assert error(p.grads(), want.grads) <= 1e-10


def test_a_deleted_guide_is_freed_at_once():
    """With its basis, which may be ten times the model: not when the garbage collector comes by."""
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 1, 0), rank=2)
    for _ in range(2):
        p.model.zero_grad()
        guide.backward(p.losses, p.loss())
    left = [weakref.ref(guide), weakref.ref(guide.subspace)]
    gc.collect()
    gc.disable()
    try:
        del guide
        assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()
