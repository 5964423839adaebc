"""Nothing in a step asks the device for a number, so the device can run ahead of the host."""

import pytest
import torch

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.engine import make_engine
from tests.helpers.watch import Waits
from tests.helpers.zoo import problem


@pytest.mark.parametrize(
    ("basis", "include_mean"), [("sketch", True), ("mean", False), ("canonical", False)]
)
def test_a_step_between_refreshes_does_not_wait(basis, include_mean):
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3, basis=basis, include_mean=include_mean)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    primary, auxiliary = p.losses(), {"a": p.loss(), "b": p.loss()}
    with Waits() as waits:
        report = guide.backward(primary=primary, auxiliary=auxiliary)
    assert not report.refreshed
    assert waits.seen == []


@pytest.mark.parametrize("basis", ["sketch", "mean", "random"])
def test_a_refresh_by_cholesky_does_not_wait(basis):
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3, basis=basis, engine="loop")
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    primary, auxiliary = p.losses(), p.loss()
    with Waits() as waits:
        report = guide.backward(primary=primary, auxiliary=auxiliary, refresh=True)
    assert report.refreshed
    assert waits.seen == []


@pytest.mark.parametrize("engine", ["loop", "hooks", "auto"])
def test_engines_wait_only_at_their_first_refresh(engine, monkeypatch):
    """Where they check themselves; not again with fewer examples or more positions."""
    monkeypatch.setattr("attittud.engine.auto.HOOKS_FROM", 0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    layout, made = Layout(model.named_parameters()), make_engine(engine)
    vectors, seen = torch.randn(2, layout.size), []
    for m, positions in ((6, 4), (5, 4), (6, 9)):
        with made.watch(model):
            losses = model(torch.randn(m, positions, 3)).square().sum((1, 2))
            with Waits() as waits:
                jacobian = made.jacobian(losses, layout)
                jacobian.left(torch.randn(3, m))
                jacobian.right(vectors)
        seen.append(bool(waits.seen))
    assert seen == [True, False, False]
