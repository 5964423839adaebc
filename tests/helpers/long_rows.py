"""Long rows on a GPU, and errors relative to float64."""

import pytest
import torch

SHAPES = [(1, 1000), (10, 1_000_003), (33, 99_999), (64, 12_345)]


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.fixture(params=SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def rows(request):
    return torch.randn(
        *request.param, device="cuda", generator=torch.Generator("cuda").manual_seed(0)
    )
