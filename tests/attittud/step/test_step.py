"""Several micro-batches are one batch: calls add up, signs are taken once, in ``combine``."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attittud import AccumulationWarning, Eta, Guide
from tests.helpers.oracle import error, expected
from tests.helpers.zoo import problem

ETA = Eta(1, 0.5, -1)
N = 4
PRIMARY = [slice(3 * i, 3 * i + 3) for i in range(N)]
AUXILIARY = [slice(2 * i, 2 * i + 2) for i in range(N)]


def setup(**options):
    p = problem("mlp", torch.float64, m=3 * N, n=2 * N)
    return p, Guide(p.model, **{"eta": ETA, "primary_weight": 0.1, "rank": 3} | options)


def one_batch(p, guide, **options):
    p.model.zero_grad()
    guide.backward(primary=p.losses(), auxiliary=p.loss(), **options)
    return {name: g.clone() for name, g in p.grads().items()}


def micro_batches(p, guide, interleaved, **options):
    p.model.zero_grad()
    for at, too in zip(PRIMARY, AUXILIARY, strict=True):
        guide.primary(p.losses(at) / N, **options)
        if interleaved:
            guide.auxiliary(p.loss(too) / N)
    if not interleaved:
        for at in AUXILIARY:
            guide.auxiliary(p.loss(at) / N)
    report = guide.combine()
    return report, p.grads()


@pytest.mark.parametrize(
    ("basis", "include_mean"),
    [("sketch", True), ("mean", False), ("exact", False), ("canonical", True)],
)
def test_micro_batches_in_a_step_with_a_refresh(basis, include_mean):
    options = {"basis": basis, "include_mean": include_mean, "engine": "loop"}
    want = one_batch(*setup(**options))
    p, guide = setup(**options)
    report, got = micro_batches(p, guide, interleaved=False)
    assert report.refreshed
    assert error(got, want) < 1e-10


@pytest.mark.parametrize(
    ("basis", "interleaved"), [("sketch", True), ("mean", False), ("canonical", True)]
)
def test_micro_batches_in_a_step_without_a_refresh(basis, interleaved):
    p, guide = setup(basis=basis, include_mean=True)
    one_batch(p, guide)
    want = one_batch(p, guide)
    p, guide = setup(basis=basis, include_mean=True)
    one_batch(p, guide)
    report, got = micro_batches(p, guide, interleaved)
    assert not report.refreshed
    assert error(got, want) < 1e-10


@pytest.mark.parametrize("basis", ["sketch", "svd"])
def test_alternating_primary_and_auxiliary_calls_with_basis_losses(basis):
    p, guide = setup(basis=basis)
    want = one_batch(p, guide, basis_losses=p.losses)
    p, guide = setup(basis=basis)
    calls = []

    def basis_losses():
        calls.append(1)
        return p.losses()

    _, got = micro_batches(p, guide, interleaved=True, basis_losses=basis_losses)
    assert len(calls) == 1
    assert error(got, want) < 1e-10


@pytest.mark.parametrize(("refresh", "include_mean"), [(True, False), (False, True)])
def test_named_tasks_that_alternate_within_a_step(refresh, include_mean):
    """Each micro-batch brings all of its losses; signs wait for the last one."""
    eta = {"a": Eta(1, 0, -1), "b": Eta(0, 1, 1)}
    p, guide = setup(eta=eta, include_mean=include_mean)
    q, other = setup(eta=eta, include_mean=include_mean)

    def tasks(r, at=slice(None), n=1):
        return {"a": r.loss(at) / n, "b": r.model.body(r.xa[at]).square().mean() / n}

    if not refresh:
        guide.backward(primary=p.losses(), auxiliary=tasks(p))
        other.backward(primary=q.losses(), auxiliary=tasks(q))
        p.model.zero_grad()
        q.model.zero_grad()
    guide.backward(primary=p.losses(), auxiliary=tasks(p), basis_losses=p.losses)
    for at, too in zip(PRIMARY, AUXILIARY, strict=True):
        other.primary(q.losses(at) / N, basis_losses=q.losses)
        other.auxiliary(tasks(q, too, N))
    other.combine()
    assert error(q.grads(), p.grads()) < 1e-10


@pytest.mark.parametrize("refresh", [True, False], ids=["refresh", ""])
def test_auxiliary_may_come_before_primary(refresh):
    """The order of the two verbs does not matter for the result."""
    p, guide = setup()
    q, other = setup()
    if not refresh:
        one_batch(p, guide)
        one_batch(q, other)
    want = one_batch(p, guide)
    q.model.zero_grad()
    other.auxiliary(q.loss())
    other.primary(q.losses())
    other.combine()
    assert error(q.grads(), want) < 1e-12


def test_tasks_that_reach_different_parts_of_the_model():
    """The first task sees less of the body than the second: what either reaches is shared."""
    p, guide = setup()
    q, other = setup()

    def tasks(r):
        return {"early": r.model.body[0](r.xa).square().mean(), "all": r.loss()}

    guide.backward(primary=p.losses(), auxiliary=tasks(p))
    other.primary(q.losses())
    other.auxiliary(tasks(q))
    other.combine()
    assert set(other.shared_parameters) == set(guide.shared_parameters)
    assert error(q.grads(), p.grads()) < 1e-10


def test_primary_auxiliary_combine_works_on_one_shared_forward_pass():
    def both(p):
        features = p.model.body(p.xp)
        losses = F.cross_entropy(p.model.heads["primary"](features), p.yp, reduction="none")
        return losses, p.model.heads["auxiliary"](features).square().mean()

    p, guide = setup()
    guide.backward(*both(p))
    q, other = setup()
    losses, loss = both(q)
    other.primary(losses, retain_graph=True)
    other.auxiliary(loss)
    assert all(g is None for g in q.grads().values())  # nothing before combine
    other.combine()
    assert all(torch.equal(q.grads()[name], g) for name, g in p.grads().items())
    reference = problem("mlp", torch.float64, m=3 * N, n=2 * N)
    want = expected(reference.model, *both(reference), eta=(1, 0.5, -1), primary_weight=0.1, rank=3)
    assert error(p.grads(), want.grads) < 1e-10


@pytest.mark.parametrize("verb", ["primary", "auxiliary"])
def test_graphs_are_freed_unless_kept(verb):
    p, guide = setup()
    losses, loss = p.losses(), p.loss()
    guide.primary(losses, retain_graph=verb == "auxiliary")
    guide.auxiliary(loss, retain_graph=verb == "primary")
    guide.combine()
    freed, kept = (losses.sum(), loss) if verb == "primary" else (loss, losses.sum())
    kept.backward()
    with pytest.raises(RuntimeError, match="second time"):
        freed.backward()


def test_svd_refuses_several_primary_calls():
    p, guide = setup(basis="svd")
    with pytest.raises(RuntimeError, match=r"(?s)(?=.*basis_losses)(?=.*sketch)"):
        micro_batches(p, guide, interleaved=False)


def told(steps):
    """How often `steps` warns about accumulation."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AccumulationWarning)
        steps()
    return sum(issubclass(warning.category, AccumulationWarning) for warning in caught)


def test_backward_for_every_micro_batch_warns_once():
    p, guide = setup()

    def steps():
        for at, too in zip(PRIMARY, AUXILIARY, strict=True):
            guide.backward(primary=p.losses(at) / N, auxiliary=p.loss(too) / N)

    assert told(steps) == 1
    assert told(steps) == 0


CLEARED = {
    "set to None": lambda model: model.zero_grad(set_to_none=True),
    "set to zero": lambda model: model.zero_grad(set_to_none=False),
    "clipped": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "replaced": lambda model: [
        setattr(p, "grad", p.grad.clone()) for p in model.parameters() if p.grad is not None
    ],
}


@pytest.mark.parametrize("cleared", CLEARED.values(), ids=list(CLEARED))
def test_gradients_that_were_touched_do_not_count_as_accumulation(cleared):
    p, guide = setup()

    def steps():
        for _ in range(4):
            guide.backward(primary=p.losses(), auxiliary=p.loss())
            cleared(p.model)

    assert told(steps) == 0
