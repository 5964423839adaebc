"""Every engine on every architecture, against the explicit Jacobian; and what ``auto`` says about its choice."""

import logging

import pytest
import torch
from oracle import error, expected
from zoo import ZOO, problem

from attittud import Eta, Guide
from attittud.autograd.layout import Layout

ETA = (1, 0.5, -1)


@pytest.mark.parametrize("engine", ["loop", "batched", "auto"])
@pytest.mark.parametrize("basis", ["sketch", "svd", "exact"])
@pytest.mark.parametrize("name", ZOO)
def test_architectures(name, basis, engine):
    p = problem(name, torch.float64)
    want = expected(p.model, p.losses(), p.loss(), eta=ETA, basis=basis, rank=3, primary_weight=0.1)
    assert want.margin > 1e-9
    guide = Guide(p.model, eta=Eta(*ETA), basis=basis, rank=3, primary_weight=0.1, engine=engine)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert error(p.grads(), want.grads) <= 1e-10
    assert set(guide.shared_parameters) == set(want.names)


@pytest.mark.parametrize("basis", ["sketch", "exact"])
def test_rows_in_chunks(monkeypatch, basis):
    """The batched engine takes two rows at a time where memory allows no more."""
    p = problem("mlp", torch.float64)
    want = expected(p.model, p.losses(), p.loss(), eta=ETA, basis=basis, rank=5, primary_weight=0.1)
    monkeypatch.setattr("attittud.engine.batched.CHUNK_BYTES", 2 * 8 * len(want.g_p))
    monkeypatch.setattr("attittud.engine.batched.AT_ONCE", 1)
    guide = Guide(p.model, eta=Eta(*ETA), basis=basis, rank=5, primary_weight=0.1, engine="batched")
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert error(p.grads(), want.grads) <= 1e-10


@pytest.mark.parametrize("basis", ["sketch", "exact"])
def test_a_backward_pass_that_cannot_be_vectorised_half_way(caplog, basis):
    """Gradients that arrived before torch gave up count once, in the first micro-batch and in a later one."""

    class Stubborn(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            return gradient * float(gradient.sum() != torch.inf)  # vmap allows no decision on data

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)
            self.stubborn = False

        def forward(self, x):
            hidden = self.first(x).tanh()
            return self.last(Stubborn.apply(hidden) if self.stubborn else hidden)

    for when in (0, 1):
        found = {}
        for engine in ("loop", "batched"):
            torch.manual_seed(0)
            model = Model().double()
            guide = Guide(model, eta=Eta(*ETA), basis=basis, rank=3, engine=engine)
            for i in range(2):
                model.stubborn = i == when
                x = torch.linspace(-1, 1 + i, 24, dtype=torch.float64).sin().reshape(6, 4)
                guide.primary(model(x).square().mean(1) / 2)
            guide.auxiliary(model(x.flip(0)).abs().mean())
            guide.combine()
            found[engine] = {name: p.grad for name, p in model.named_parameters()}
        assert error(found["batched"], found["loop"]) <= 1e-12
        assert "'loop' from now on" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_parameter_that_the_basis_losses_do_not_reach(monkeypatch, engine):
    """Its part of the basis is zero, whatever lay in the memory before."""
    monkeypatch.setattr(Layout, "empty", lambda self, *rows: torch.full((*rows, self.size), torch.nan).double())
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 3)).double()
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).sin().reshape(6, 4)
    guide = Guide(model, eta=Eta(*ETA), rank=3, engine=engine)
    guide.backward(
        primary=model(x).square().mean(1),
        auxiliary=model(x.flip(0)).abs().mean(),
        basis_losses=lambda: model[0](x).square().mean(1),
    )
    assert guide.subspace is not None
    first, last = guide.subspace.rows.split([15, 12], dim=1)
    assert torch.equal(last, torch.zeros_like(last))
    assert torch.allclose(first @ first.T, torch.eye(3).double())


@pytest.mark.parametrize("engine", ["batched", "auto"])
@pytest.mark.parametrize("name", ["mlp", "cnn_batch_norm", "channels_last", "layer_norm", "transformer"])
def test_autocast_gives_one_answer(name, engine):
    """Where vmap cannot go under autocast, a loop takes over; the result is that of the loop."""
    grads = []
    for kind in ("loop", engine):
        p = problem(name)
        guide = Guide(p.model, eta=Eta(*ETA), rank=3, engine=kind)
        with torch.autocast("cpu", torch.bfloat16):
            primary, auxiliary = p.losses(), p.loss()
        guide.backward(primary=primary, auxiliary=auxiliary)
        grads.append(p.grads())
    assert error(*grads) < 2e-2


def test_auto_logs_which_engine_and_why(caplog):
    p = problem("mlp")
    with caplog.at_level(logging.DEBUG, logger="attittud"):
        Guide(p.model, eta=Eta(*ETA), rank=3).backward(primary=p.losses(), auxiliary=p.loss())
    assert "loop" in caplog.text or "batched" in caplog.text


@pytest.mark.parametrize("engine", ["batched", "auto"])
def test_what_vmap_cannot_do_is_done_by_a_loop_and_said_once(engine, caplog):
    """A normalisation right after a bf16 operation."""
    p = problem("layer_norm")
    guide = Guide(p.model, eta=Eta(*ETA), rank=3, engine=engine, refresh_every=1)
    with caplog.at_level(logging.DEBUG, logger="attittud"):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                primary, auxiliary = p.losses(), p.loss()
            guide.backward(primary=primary, auxiliary=auxiliary)
    assert sum("'loop'" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("engine", ["batched", "auto"])
def test_what_vmap_does_wrongly_is_done_by_a_loop_and_said_once(engine, caplog):
    """torch's rule for the backward pass of distances mixes rows up without a word."""
    grads = []
    for kind in ("loop", engine):
        p = problem("mlp", torch.float64)
        centres = torch.linspace(-1, 1, 18, dtype=torch.float64).sin().reshape(3, 6)
        guide = Guide(p.model, eta=Eta(*ETA), rank=3, engine=kind, refresh_every=1)
        for _ in range(2):
            distances = torch.cdist(p.model.body(p.xp), centres)
            guide.backward(
                primary=torch.nn.functional.cross_entropy(-distances, p.yp, reduction="none"), auxiliary=p.loss()
            )
        grads.append(p.grads())
    assert error(*grads) < 1e-12
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1 and "'loop' from now on" in said[0] and "body.0.weight (by" in said[0]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_refresh_needs_no_further_forward(engine):
    p = problem("mlp")
    calls = []
    primary, auxiliary = p.losses(), p.loss()
    p.model.body.register_forward_hook(lambda *_: calls.append(1))
    guide = Guide(p.model, eta=Eta(*ETA), rank=3, engine=engine)
    guide.backward(primary=primary, auxiliary=auxiliary)
    assert not calls
    guide.backward(primary=p.losses(), auxiliary=p.loss(), basis_losses=p.losses, refresh=True)
    assert len(calls) == 3
