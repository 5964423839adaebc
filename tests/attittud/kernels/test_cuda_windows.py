"""The Triton kernel for windows of convolutions, against torch."""

import pytest
import torch

from attittud.engine.gradients import Windows
from tests.helpers.on_gpu import relative

pytestmark = pytest.mark.gpu


# examples, entries of each, input and output channels, space, window, stride, dilation, pads as in
# F.pad, rows of weights
CONVOLUTIONS = {
    "many splits": (64, 1, 64, 64, (32, 32), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 5),
    "one split": (9, 1, 256, 256, (8, 8), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 5),
    "many sums": (7, 1, 64, 128, (14, 14), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 10),
    "odd channels": (5, 1, 17, 70, (9, 7), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 6),
    "several entries": (4, 3, 16, 33, (10, 6), (3, 2), (2, 1), (1, 2), (2, 2, 1, 1), 3),
    "other pads": (3, 1, 24, 16, (7, 9), (4, 2), (1, 1), (1, 1), (0, 1, 1, 2), 2),
    "a point": (6, 1, 32, 16, (11, 5), (1, 1), (2, 3), (1, 1), (0, 0, 0, 0), 1),
    "images": (5, 1, 3, 64, (23, 18), (7, 7), (2, 2), (1, 1), (3, 3, 3, 3), 5),
    "few channels": (4, 2, 5, 7, (9, 12), (3, 4), (1, 2), (2, 3), (1, 1, 2, 2), 2),
    "one channel": (9, 1, 1, 20, (12, 12), (5, 5), (1, 1), (1, 1), (0, 0, 0, 0), 10),
    "a large image": (1, 1, 2, 3, (1399, 1499), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 2),
    "two positions": (6, 1, 16, 16, (4, 3), (3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 4),
}


class Convolved:
    """A convolution with made-up gradients, and their sums by a loop in float64."""

    def __init__(self, case, *, dtype, last):
        m, each, channels, outputs, space, window, stride, dilation, pads, k = case
        random = torch.Generator("cuda").manual_seed(0)
        layout = torch.channels_last if last else torch.contiguous_format

        def normal(*shape):
            return torch.randn(shape, generator=random, device="cuda")

        x = normal(m * each, channels, *space).to(dtype, memory_format=layout)
        weight = normal(outputs, channels, *window)
        padded = torch.nn.functional.pad(x.double(), pads)
        output = torch.nn.functional.conv2d(padded, weight.double(), None, stride, 0, dilation)
        gradient = normal(*output.shape).to(dtype, memory_format=layout)
        self.weights = normal(k, m)
        self.piece = Windows(gradient, x, weight, m, (stride, dilation), pads, 1)
        self.before = normal(k, *weight.shape)
        if last:
            self.before = normal(k, outputs, *window, channels).movedim(-1, 2)
        one_by_one = [
            torch.nn.grad.conv2d_weight(a, weight.shape, b.double(), stride, 0, dilation)
            for a, b in zip(padded.split(each), gradient.split(each), strict=True)
        ]
        self.wanted = self.before.double() + torch.einsum(
            "km,m...->k...", self.weights.double(), torch.stack(one_by_one)
        )

    def sums(self):
        out = self.before.clone()  # which keeps the layout
        self.piece.left(out, self.weights, 1 << 20)
        return out


@pytest.mark.parametrize(("dtype", "last"), [(torch.bfloat16, True), (torch.float16, False)])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_sums_over_windows_equal_torchs(case, dtype, last, monkeypatch):
    made = Convolved(CONVOLUTIONS[case], dtype=dtype, last=last)
    monkeypatch.setattr(Windows, "_right", None)  # no windows are laid out
    found = made.sums()
    # Tensor cores cut digits off where they add. One wrong position of the large image would be
    # 7e-4.
    assert relative(found, made.wanted) < 2e-5
    assert torch.equal(found, made.sums())
