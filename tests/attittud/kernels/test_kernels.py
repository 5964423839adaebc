"""Which kernel is used, and the precision of plain torch inside an autocast region."""

import pytest
import torch

from attittud import kernels as linalg
from attittud.kernels import dot, gram, project, transform_


def test_projections_keep_their_precision_inside_autocast():
    torch.manual_seed(0)
    rows, vector = torch.randn(3, 50), torch.randn(50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (rows @ vector).dtype == torch.bfloat16  # what torch would do
        inside = project(rows, vector)
    assert torch.equal(inside, rows.mv(vector).double())


def test_products_of_single_precision_are_float64():
    """Differences of these products decide whether a gradient lies in the span."""
    torch.manual_seed(0)
    rows = 1 + 1e-3 * torch.randn(3, 20_000)
    wide = rows.double()
    torch.testing.assert_close(gram(rows), wide @ wide.T, rtol=1e-13, atol=0)
    torch.testing.assert_close(dot(rows[0], rows[1]), wide[0] @ wide[1], rtol=1e-13, atol=0)
    matrix = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
    torch.testing.assert_close(transform_(rows, matrix), (matrix @ wide).float(), rtol=0, atol=0)


@pytest.mark.gpu
def test_the_triton_kernels_are_used(rows):
    assert linalg._fast(rows) is not None
    assert linalg._fast(rows.double()) is None
