"""Long rows on a GPU."""

import pytest
import torch

SHAPES = [(1, 1000), (10, 1_000_003), (33, 99_999), (64, 12_345)]


@pytest.fixture(params=SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def rows(request):
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(*request.param, device="cuda", generator=generator)
