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


def test_where_vmap_fails_a_loop_takes_over_with_one_message(caplog):
    """A normalisation right after a bf16 operation."""
    p = problem("layer_norm")
    guide = Guide(p.model, eta=Eta(*WEIGHTS), rank=3, engine="batched", refresh_every=1)
    with caplog.at_level(logging.DEBUG, logger="attittud"):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                primary, auxiliary = p.losses(), p.loss()
            guide.backward(primary=primary, auxiliary=auxiliary)
    assert sum("'loop'" in message for message in caplog.messages) == 1


def test_where_vmap_is_wrong_a_loop_takes_over_with_one_warning(caplog):
    """torch's rule for the backward pass of distances silently mixes rows up."""
    grads = []
    for engine in ("loop", "batched"):
        p = problem("mlp", torch.float64)
        centres = torch.linspace(-1, 1, 18, dtype=torch.float64).sin().reshape(3, 6)
        guide = Guide(p.model, eta=Eta(*WEIGHTS), rank=3, engine=engine, refresh_every=1)
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
