"""The random basis is orthonormal and ignores the losses."""

import pytest
import torch

from attittud import Eta, Guide
from tests.helpers.zoo import problem


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
def test_random_basis_is_orthonormal_and_ignores_the_losses(dtype):
    p = problem("mlp", dtype)
    bases = []
    for losses in (p.losses(), 3 * p.losses() ** 2):
        guide = Guide(p.model, eta=Eta(1, 0, 0), basis="random", rank=4, seed=2)
        guide.backward(primary=losses, auxiliary=p.loss())
        bases.append(guide.state_dict()["basis"])
    assert torch.equal(*bases)
    assert torch.allclose(bases[0] @ bases[0].T, torch.eye(4, dtype=dtype), atol=1e-6)
    other = Guide(p.model, eta=Eta(1, 0, 0), basis="random", rank=4, seed=3)
    other.backward(primary=p.losses(), auxiliary=p.loss())
    overlap = (bases[0] @ other.state_dict()["basis"].T).abs().max()
    assert overlap < 0.8  # another seed, other directions
