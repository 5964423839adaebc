"""Per-example gradients in factors: every order of contraction, and the precision of their
products.
"""

import pytest

from attittud import Eta, Guide
from attittud.engine import UnsupportedError
from attittud.engine.gradients import Dense
from tests.helpers.comparing import compare
from tests.helpers.layers import layer
from tests.helpers.zoo import problem

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


def test_the_check_is_as_sharp_as_float32(monkeypatch):
    """An error of a thousandth shows."""
    monkeypatch.setattr(
        Dense, "chunk", lambda self, rows, dtype: 1.001 * self.gradients[rows].to(dtype)
    )
    p = problem("mlp")
    with pytest.raises(UnsupportedError, match=r"body\.0\.bias"):
        Guide(p.model, eta=ETA, rank=2, engine="hooks").backward(
            primary=p.losses, auxiliary=p.loss()
        )


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize(
    "name",
    ["linear", "linear_over_sequences", "conv2d_channels_last", "conv2d_grouped", "attention"],
)
def test_every_order_of_contraction_gives_the_same_result(name, rows):
    given = layer(name)
    compare("hooks", given.model, given.losses, rows)
