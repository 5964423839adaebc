"""The canonical basis compares single coordinates, and is never stored."""

from attittud import Eta
from tests.helpers.steps import step
from tests.helpers.zoo import problem


def test_canonical_basis_is_never_stored():
    p = problem("mlp")
    guide = step(p, eta=Eta(1, 0, 0), basis="canonical")
    V = guide.state_dict()["basis"]
    assert V is None or V.numel() == 0
