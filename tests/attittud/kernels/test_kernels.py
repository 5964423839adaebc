"""Which kernel is used, and the precision of plain torch inside an autocast region."""

import pytest
import torch

from attittud import kernels as linalg
from attittud.kernels import project
from tests.helpers.long_rows import rows

__all__ = ["rows"]  # fixtures


def test_projections_keep_their_precision_inside_autocast():
    torch.manual_seed(0)
    rows, vector = torch.randn(3, 50), torch.randn(50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (rows @ vector).dtype == torch.bfloat16  # what torch would do
        inside = project(rows, vector)
    assert torch.equal(inside, rows.mv(vector).double())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_triton_kernels_are_used(rows):
    assert linalg._fast(rows) is not None
    assert linalg._fast(rows.double()) is None
