"""An engine that is registered from outside of the package is found by its name."""

import pytest
import torch
from torch import nn

import attittud
from attittud import engine
from attittud.engine.auto import Auto
from attittud.engine.base import Loop
from attittud.engine.hooks import Hooks
from tests.helpers.commands import flip_result


@pytest.mark.slow
def test_an_engine_can_be_registered_from_outside_of_the_package(tmp_path):
    @attittud.register_engine
    class Counted(Loop):
        name = "counted"
        rows = 0

        def write(self, losses, layout, weights, out, *, fresh):
            type(self).rows += weights.shape[0]
            super().write(losses, layout, weights, out, fresh=fresh)

    try:
        model, x = nn.Linear(4, 3), torch.randn(6, 4)
        guide = attittud.Guide(model, eta="flip", rank=2, engine="counted")
        guide.backward(primary=model(x).square().mean(1), auxiliary=model(x).abs().mean())
        assert Counted.rows == 2 and "counted" in attittud.engines()
        flip_result(tmp_path, "strategy.engine=counted")
        assert Counted.rows > 2
    finally:
        engine._ENGINES.pop("counted", None)


def test_no_other_engine_silently_replaces_a_registered_one():
    """On shards it is refused, though it inherits from an engine that is not."""
    kinds = [type("Mine", (kind,), {"name": "mine"}) for kind in (Loop, Hooks, Auto)]
    assert [kind.on_shards for kind in kinds] == [None] * 3
    assert (Loop.on_shards, Hooks.on_shards, Auto.on_shards) == ("loop", None, "loop")
