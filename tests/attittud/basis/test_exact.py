"""The exact basis is the leading subspace of all per-example gradients."""

import pytest
import torch

from attittud import Eta, Guide
from tests.helpers.oracle import jacobian
from tests.helpers.zoo import problem


@pytest.mark.parametrize("rank", [2, 4, 9])
def test_exact_basis_is_the_leading_subspace_of_all_gradients(rank):
    """As many directions as the rank allows: the leading right singular vectors of J."""
    p = problem("mlp", torch.float64)
    guide = Guide(p.model, eta=Eta(1, 0, 0), basis="exact", rank=rank)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    J = jacobian(p.losses(), p.model, list(guide.shared_parameters))
    V = guide.state_dict()["basis"]
    V = V[V.any(1)]
    leading = torch.linalg.svd(J, full_matrices=False).Vh[:rank]
    assert len(V) == min(rank, len(J))
    assert torch.allclose(V.T @ V, leading.T @ leading, atol=1e-9)
