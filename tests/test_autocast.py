"""Our own arithmetic keeps its precision inside an autocast region."""

import torch

from attittud.linalg import project


def test_projection_inside_autocast():
    torch.manual_seed(0)
    rows, vector = torch.randn(3, 50), torch.randn(50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (rows @ vector).dtype == torch.bfloat16  # what torch would do
        inside = project(rows, vector)
    assert torch.equal(inside, rows.mv(vector).double())
