"""Several rows at once by vmap, in chunks, and by a loop where vmap fails or is wrong."""

import logging

import pytest
import torch

from attittud import Eta, Guide
from tests.helpers.oracle import error, expected
from tests.helpers.zoo import problem

WEIGHTS = (1, 0.5, -1)


@pytest.mark.parametrize("basis", ["sketch", "exact"])
def test_rows_are_computed_in_chunks(monkeypatch, basis):
    """The batched engine takes two rows at a time where memory allows no more."""
    p = problem("mlp", torch.float64)
    want = expected(
        p.model, p.losses(), p.loss(), eta=WEIGHTS, basis=basis, rank=5, primary_weight=0.1
    )
    monkeypatch.setattr("attittud.engine.batched.CHUNK_BYTES", 2 * 8 * len(want.g_p))
    monkeypatch.setattr("attittud.engine.batched.AT_ONCE", 1)
    guide = Guide(
        p.model, eta=Eta(*WEIGHTS), basis=basis, rank=5, primary_weight=0.1, engine="batched"
    )
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert error(p.grads(), want.grads) <= 1e-10


@pytest.mark.parametrize("basis", ["sketch", "exact"])
def test_a_backward_pass_that_fails_half_way_adds_nothing_twice(caplog, basis):
    """Gradients that arrived before torch gave up count once, in the first micro-batch and in a
    later one.
    """

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
            guide = Guide(model, eta=Eta(*WEIGHTS), basis=basis, rank=3, engine=engine)
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


@pytest.mark.parametrize("engine", ["batched", "auto"])
def test_where_vmap_fails_a_loop_takes_over_with_one_message(engine, caplog):
    """A normalisation right after a bf16 operation."""
    p = problem("layer_norm")
    guide = Guide(p.model, eta=Eta(*WEIGHTS), rank=3, engine=engine, refresh_every=1)
    with caplog.at_level(logging.DEBUG, logger="attittud"):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                primary, auxiliary = p.losses(), p.loss()
            guide.backward(primary=primary, auxiliary=auxiliary)
    assert sum("'loop'" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("engine", ["batched", "auto"])
def test_where_vmap_is_wrong_a_loop_takes_over_with_one_warning(engine, caplog):
    """torch's rule for the backward pass of distances silently mixes rows up."""
    grads = []
    for kind in ("loop", engine):
        p = problem("mlp", torch.float64)
        centres = torch.linspace(-1, 1, 18, dtype=torch.float64).sin().reshape(3, 6)
        guide = Guide(p.model, eta=Eta(*WEIGHTS), rank=3, engine=kind, refresh_every=1)
        for _ in range(2):
            distances = torch.cdist(p.model.body(p.xp), centres)
            guide.backward(
                primary=torch.nn.functional.cross_entropy(-distances, p.yp, reduction="none"),
                auxiliary=p.loss(),
            )
        grads.append(p.grads())
    assert error(*grads) < 1e-12
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1 and "'loop' from now on" in said[0] and "body.0.weight (off by" in said[0]
