"""The svd basis finds the leading directions of many examples."""

import torch

from attittud import Eta, Guide
from tests.helpers.oracle import jacobian, shared_names
from tests.helpers.steps import stored_basis
from tests.helpers.zoo import problem


def test_svd_with_many_examples_finds_the_leading_directions():
    """Fewer sketch rows than examples: approximate, but close after two power iterations.

    Without them 0.98 of the length would be found, with one of them 0.9999.
    """
    p = problem("mlp", torch.float64, m=60)
    names = shared_names(p.model, p.losses(), p.loss())
    J = jacobian(p.losses(), p.model, names)
    guide = Guide(p.model, eta=Eta(1, 0, 0), basis="svd", rank=2)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    V = stored_basis(guide, names)
    top = torch.linalg.svdvals(J)[:2]
    assert torch.allclose(V @ V.T, torch.eye(2, dtype=V.dtype), atol=1e-10)
    assert (J @ V.T).norm() >= 0.99999 * top.norm()
