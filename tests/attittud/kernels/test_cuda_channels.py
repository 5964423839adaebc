"""The Triton kernel for sums over channels, against float64."""

import pytest
import torch

from attittud import kernels as linalg
from tests.helpers.long_rows import relative

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("m", "each", "channels", "space"),
    [(64, 1, 64, (32, 32)), (3, 2, 70, (9, 5)), (2, 1, 5, (200, 150))],
)
def test_sums_over_channels(m, each, channels, space, dtype, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x, g = torch.randn(2, m * each, channels, *space, device="cuda") + 3
    x, g = (t.to(dtype, memory_format=layout) for t in (x, g))
    mean, var = (torch.rand(channels, 2, device="cuda") + 0.5).unbind(1)  # not side by side
    kernels = linalg.kernels()
    assert kernels.serves_channels(g, x) and not kernels.serves_channels(g.double(), x)
    normalised = torch.nn.functional.batch_norm(x.double(), mean.double(), var.double())
    wanted = [
        t.unflatten(0, (m, each)).sum((1, 3, 4)) for t in (g.double() * normalised, g.double())
    ]
    for found, want in zip(kernels.channel_sums(g, x, mean, var, 1e-5, m), wanted, strict=True):
        assert relative(found, want) < 1e-6
