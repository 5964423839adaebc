"""Nothing in a step asks the device for a number: it can run ahead of the host, or be captured in a graph."""

import pytest
import torch
from watch import Waits
from zoo import problem

from attittud import Eta, Guide


def test_the_watch_sees_a_wait():
    with Waits() as waits:
        torch.ones(2).sum().item()
    assert waits.seen


@pytest.mark.parametrize("include_mean", [False, True], ids=["", "include_mean"])
@pytest.mark.parametrize("basis", ["sketch", "svd", "exact", "mean", "random", "canonical"])
def test_step_between_refreshes(basis, include_mean):
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3, basis=basis, include_mean=include_mean)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    primary, auxiliary = p.losses(), {"a": p.loss(), "b": p.loss()}
    with Waits() as waits:
        report = guide.backward(primary=primary, auxiliary=auxiliary)
    assert not report.refreshed
    assert waits.seen == []


@pytest.mark.parametrize("basis", ["sketch", "mean", "random"])
def test_refresh_by_cholesky(basis):
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3, basis=basis, engine="loop")
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    primary, auxiliary = p.losses(), p.loss()
    with Waits() as waits:
        report = guide.backward(primary=primary, auxiliary=auxiliary, refresh=True)
    assert report.refreshed
    assert waits.seen == []
