"""When a basis is refreshed, and what happens where that fails."""

import pytest
import torch

from attittud import Eta
from tests.helpers.degenerate import few_warnings, guide_for
from tests.helpers.oracle import error, expected, expected_for, gradients
from tests.helpers.zoo import problem

__all__ = ["few_warnings"]

ETA = (1, 0.5, -1)
NAN = float("nan")
INF = float("inf")


def nan_at(losses):
    factor = torch.ones_like(losses)
    factor[2] = NAN
    return losses * factor


@pytest.mark.parametrize(
    ("basis", "bad"),
    [("sketch", NAN), ("svd", INF), ("exact", INF), ("random", NAN), ("mean", INF)],
)
def test_refresh_with_a_broken_example_keeps_the_old_basis(basis, bad, few_warnings):
    p = problem("mlp", torch.float64)
    guide = guide_for(p, basis=basis, engine="loop")
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    V = guide.state_dict()["basis"].clone()
    factor = torch.tensor([1, 1, bad, 1, 1, 1], dtype=torch.float64)
    report = guide.backward(primary=p.losses() * factor, auxiliary=p.loss(), refresh=True)
    # As with Tensor.backward the broken gradient shows in .grad.
    assert not all(g.isfinite().all() for g in p.grads().values())
    if basis != "random":  # which does not look at the losses
        assert report.skipped_refreshes == 1
        assert torch.equal(guide.state_dict()["basis"], V)
    V = guide.state_dict()["basis"].clone()
    p.model.zero_grad()
    report = guide.backward(primary=p.losses(), auxiliary=p.loss(), refresh=False)
    want = expected_for(p, eta=ETA, basis=V, primary_weight=0.1)
    assert error(p.grads(), want.grads) <= 1e-10
    assert not few_warnings  # nobody has read a report
    report.to_dict()
    assert len(few_warnings) == (basis != "random")


@pytest.mark.parametrize("basis", ["sketch", "mean"])
def test_first_refresh_that_fails_leaves_everything_neutral(basis):
    p = problem("mlp")
    g_p, g_a = gradients(p.losses().mean(), p.model), gradients(p.loss(), p.model)
    guide = guide_for(p, basis=basis, eta=Eta(0.5, 0, -1))
    report = guide.backward(
        primary=p.losses(), auxiliary=p.loss(), basis_losses=lambda: nan_at(p.losses())
    )
    assert report.skipped_refreshes == 1
    assert report.effective_rank == 0
    for name, x in p.model.body.named_parameters(prefix="body"):
        assert torch.equal(x.grad, 0.5 * g_a[name] + 0.1 * g_p[name]), name
    later = guide.backward(primary=p.losses(), auxiliary=p.loss(), refresh=True)
    assert later.effective_rank > 0
    assert later.skipped_refreshes == 1


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


@pytest.mark.parametrize(
    ("basis", "verbs", "callable_"),
    [("sketch", False, True), ("exact", True, False), ("svd", True, True)],
)
def test_a_refresh_waits_for_a_batch_with_more_than_one_example(basis, verbs, callable_):
    p = problem("mlp", torch.float64)
    guide = guide_for(p, basis=basis, refresh_every=2)

    def step(at):
        losses = (lambda: p.losses(at)) if callable_ else p.losses(at)
        p.model.zero_grad()
        if not verbs:
            return guide.backward(primary=losses, auxiliary=p.loss())
        guide.primary(losses)
        guide.auxiliary(p.loss())
        return guide.combine()

    every, last = slice(0, 6), slice(5, 6)
    wanted = [True, False, False, False, True]
    assert [step(at).refreshed for at in (every, every, last, last, every)] == wanted
    V = guide.subspace.rows.clone()
    step(every)
    report = step(last)
    assert not report.refreshed and torch.equal(guide.subspace.rows, V)
    want = expected(p.model, p.losses(last), p.loss(), eta=ETA, basis=V, primary_weight=0.1)
    assert error(p.grads(), want.grads) <= 1e-10
    with pytest.raises(ValueError, match="at least 2 primary examples"):
        guide.backward(primary=p.losses(last), auxiliary=p.loss(), refresh=True)


def test_refresh_can_be_forced_and_forbidden():
    p = problem("mlp")
    guide = guide_for(p, refresh_every=2)
    wish = [None, True, False, False, False]
    refreshed = [
        guide.backward(primary=p.losses(), auxiliary=p.loss(), refresh=r).refreshed for r in wish
    ]
    assert refreshed == [True, True, False, False, False]
