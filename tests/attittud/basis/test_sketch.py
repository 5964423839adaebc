"""The sketch is Gram-Schmidt on random mixtures of the gradients, in the order of its rows."""

import pytest
import torch

from attittud import Eta, Guide
from attittud.basis.base import gaussian
from tests.helpers.oracle import distance, gram_schmidt, jacobian
from tests.helpers.zoo import problem


@pytest.mark.parametrize(
    ("rank", "dtype"), [(1, torch.float64), (6, torch.float64), (3, torch.float32)]
)
def test_sketch_is_gram_schmidt_in_row_order(rank, dtype):
    p = problem("mlp", dtype)
    guide = Guide(p.model, eta=Eta(1, 0, 0), rank=rank, seed=7)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    double = p.to(torch.float64)
    sketch = gaussian(7, 0, rows=rank, first=0, columns=6) @ jacobian(
        double.losses(), double.model, guide.shared_parameters
    )
    want = gram_schmidt(sketch)
    assert distance(guide.state_dict()["basis"], want) < (1e-12 if dtype == torch.float64 else 1e-5)
    if rank > 1:  # the same span in another order would be another basis
        assert distance(gram_schmidt(sketch.flip(0)).flip(0), want) > 1e-2
