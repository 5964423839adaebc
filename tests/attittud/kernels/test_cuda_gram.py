"""The Triton kernel for Gram matrices, against float64 and from run to run."""

import pytest
import torch

from attittud import kernels as linalg
from tests.helpers.long_rows import relative, rows

__all__ = ["rows"]  # fixtures
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_gram_matrices_equal_float64(rows):
    assert relative(linalg.gram(rows), rows.double() @ rows.double().T) < 1e-13


def test_gram_matrices_are_the_same_in_every_run(rows):
    assert torch.equal(linalg.gram(rows), linalg.gram(rows))
