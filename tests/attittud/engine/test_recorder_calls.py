"""Where the examples are in recorded calls: ambiguous shapes, and batches of one example."""

import pytest
import torch

from attittud.autograd.layout import Layout
from attittud.engine import UnsupportedError, make_engine
from tests.helpers.comparing import compare
from tests.helpers.later_batches import ONE_EXAMPLE, later
from tests.helpers.layers import M, layer
from tests.helpers.oracle import jacobian


def test_a_later_batch_of_ambiguous_shape_keeps_the_confirmed_axis():
    """Positions first: with as many positions as examples the shape no longer tells which is which."""
    given = layer("linear_positions_first")
    engine = make_engine("hooks")
    layout = Layout(given.model.named_parameters())
    for x in (given.x, torch.randn(M, M, 6).double()):
        given.x = x
        want = jacobian(given.losses(), given.model, layout.names)
        with engine.watch(given.model):
            got = engine.jacobian(given.losses(), layout).gram()
        assert torch.allclose(got, want @ want.T)
    with pytest.raises(UnsupportedError, match="influence each other"):
        compare("hooks", given.model, given.losses)  # a new engine reads it wrongly, and notices


def test_a_batch_of_one_example_confirms_no_axis_for_larger_batches():
    with pytest.raises(UnsupportedError, match="do not add up"):
        later(ONE_EXAMPLE, "hooks")
