"""The Triton kernels against float64, and against the plain torch they stand in for."""

import pytest
import torch

from attittud import kernels as linalg
from attittud.basis.orthonormal import orthonormalise_
from attittud.engine.gradients import Windows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SHAPES = [(1, 1000), (5, 4301), (10, 1_000_003), (13, 5003), (20, 70_000), (33, 99_999), (64, 12_345)]


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.fixture(params=SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def rows(request):
    return torch.randn(*request.param, device="cuda", generator=torch.Generator("cuda").manual_seed(0))


def test_they_are_used(rows):
    assert linalg._fast(rows) is not None
    assert linalg._fast(rows.double()) is None


def test_gram(rows):
    assert relative(linalg.gram(rows), rows.double() @ rows.double().T) < 1e-13


def test_transform(rows):
    matrix = torch.randn(len(rows), len(rows), dtype=torch.float64, device="cuda")
    for kept in {1, (len(rows) + 1) // 2, len(rows)}:
        wanted = matrix[:kept] @ rows.double()
        copy = rows.clone()
        assert relative(linalg.transform_(copy, matrix[:kept]), wanted) < 1e-6
        assert torch.equal(copy[kept:], rows[kept:])


def test_transform_by_a_lower_triangle(rows):
    matrix = torch.randn(len(rows), len(rows), dtype=torch.float64, device="cuda").tril()
    wanted = matrix @ rows.double()
    assert relative(linalg.transform_(rows, matrix, lower=True), wanted) < 1e-6


@pytest.mark.parametrize("rank", ["full", "half", "none"])
def test_factors_are_those_of_plain_torch(rows, rank):
    k = len(rows)
    if rank == "half":
        rows = torch.randn(k, (k + 1) // 2, device="cuda") @ rows[: (k + 1) // 2]
    elif rank == "none":
        rows.zero_()
    matrix = linalg.gram(rows)
    factor, inverse = linalg.factorise(matrix, 1e-4)
    wanted, wanted_inverse = (x.cuda() for x in linalg.factorise(matrix.cpu(), 1e-4))
    torch.testing.assert_close(factor, wanted, rtol=1e-6, atol=1e-8 * float(wanted.abs().max()))
    torch.testing.assert_close(inverse, wanted_inverse, rtol=1e-4, atol=1e-6 * float(wanted_inverse.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_taken_where_finite(rows, dtype):
    old = torch.randn_like(rows).to(dtype)
    before = old.clone()
    linalg.take_(old, rows, torch.zeros((), dtype=torch.bool, device="cuda"))
    assert torch.equal(old, before)
    linalg.take_(old, rows, torch.ones((), dtype=torch.bool, device="cuda"))
    assert torch.equal(old, rows.to(dtype))


@pytest.mark.parametrize(("k", "m", "size"), [(5, 64, 300_000), (10, 32, 131_072), (12, 7, 200_001), (20, 9, 200_000)])
def test_products_of_matrices_are_added(k, m, size):
    """Into some of the columns of a larger matrix, with some of the columns of the weights."""
    whole, weights = torch.randn(k, size + 100, device="cuda"), torch.randn(k, m + 5, device="cuda")[:, 3 : 3 + m]
    rows, before = torch.randn(m, size, device="cuda"), whole.clone()
    linalg.add_product_(whole[:, 50:-50], weights, rows)
    assert relative(whole[:, 50:-50], before[:, 50:-50].double() + weights.double() @ rows.double()) < 1e-6
    assert torch.equal(whole[:, :50], before[:, :50]) and torch.equal(whole[:, -50:], before[:, -50:])


def test_orthonormal_rows(rows):
    orthonormalise_(rows)
    identity = torch.eye(len(rows), dtype=torch.float64, device="cuda")
    assert float((rows.double() @ rows.double().T - identity).abs().max()) < 2e-6


def test_dependent_rows_become_zero():
    rows = torch.randn(4, 5000, device="cuda")
    rows = torch.cat([rows, rows.flip(0) * 3])
    orthonormalise_(rows)
    assert torch.equal(rows[4:], torch.zeros_like(rows[4:]))


@pytest.mark.parametrize("k", [8, 20])
def test_more_rows_than_examples(k):
    """Four examples span four directions, also where few of the parameters carry all of the gradient."""
    examples = torch.randn(4, 300_000, device="cuda")
    examples[:, 300:] *= 1e-6
    rows = torch.randn(k, 4, device="cuda") @ examples
    orthonormalise_(rows)
    assert torch.equal(rows[4:], torch.zeros_like(rows[4:]))
    assert (rows[:4].double().norm(dim=1) - 1).abs().max() < 1e-6


def test_same_in_every_run(rows):
    assert torch.equal(linalg.gram(rows), linalg.gram(rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products(rows, dtype):
    x, y = torch.randn(2, rows.shape[1], device="cuda")
    rows = rows.to(dtype)
    found = linalg.products(rows, x, y)
    V, u, v = rows.double(), x.double(), y.double()
    scale = V.norm() * u.norm()
    assert float((found.rows_x - V @ u).norm() / scale) < 1e-13
    assert float((found.rows_y - V @ v).norm() / scale) < 1e-13
    assert [float(z) for z in (found.xx, found.yy, found.xy)] == pytest.approx(
        [float(u @ u), float(v @ v), float(u @ v)], rel=1e-12, abs=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lift(rows, dtype):
    x, y = torch.randn(2, rows.shape[1], device="cuda")
    rows, weights = rows.to(dtype), torch.randn(len(rows), device="cuda", dtype=torch.float64)
    factor = torch.full((), 0.1, dtype=torch.float64, device="cuda")
    wanted = 0.7 * x.double() + rows.double().T @ weights + 0.1 * y.double()
    assert relative(linalg.lift_(rows, weights, x.clone(), y.clone(), 0.7, factor), wanted) < 1e-6


@pytest.mark.parametrize("c", [1.0, 0.5, 2.0, -1.0, 0.3])
def test_lift_of_nothing_is_exact(rows, c):
    x, y = torch.randn(2, rows.shape[1], device="cuda")
    factor = torch.full((), 0.1, dtype=torch.float64, device="cuda")
    nothing = torch.zeros(len(rows), device="cuda", dtype=torch.float64)
    assert torch.equal(linalg.lift_(rows, nothing, x.clone(), y.clone(), c, factor), c * x + 0.1 * y)


# ---------------------------------------------------------------------------------------------- windows

# examples, entries of each, input and output channels, space, window, stride, dilation, pads as in F.pad, rows of weights
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
    """A convolution with made-up gradients, and what they add up to: a loop over the examples in float64."""

    def __init__(self, m, each, channels, outputs, space, window, stride, dilation, pads, k, *, dtype, last, groups=1):
        random = torch.Generator("cuda").manual_seed(0)
        layout = torch.channels_last if last else torch.contiguous_format

        def normal(*shape):
            return torch.randn(shape, generator=random, device="cuda")

        x = normal(m * each, channels, *space).to(dtype, memory_format=layout)
        weight = normal(outputs, channels // groups, *window)
        padded = torch.nn.functional.pad(x.double(), pads)
        shape = torch.nn.functional.conv2d(padded, weight.double(), None, stride, 0, dilation, groups).shape
        gradient = normal(*shape).to(dtype, memory_format=layout)
        self.weights = normal(k, m)
        self.piece = Windows(gradient, x, weight, m, (stride, dilation), pads, groups)
        self.before = normal(k, *weight.shape)
        if last:
            self.before = normal(k, outputs, *window, channels // groups).movedim(-1, 2)
        one_by_one = [
            torch.nn.grad.conv2d_weight(a, weight.shape, b.double(), stride, 0, dilation, groups)
            for a, b in zip(padded.split(each), gradient.split(each), strict=True)
        ]
        self.wanted = self.before.double() + torch.einsum(
            "km,m...->k...", self.weights.double(), torch.stack(one_by_one)
        )

    def sums(self):
        out = self.before.clone()  # which keeps the layout
        self.piece.left(out, self.weights, 1 << 20)
        return out


@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_windows(case, dtype, last, monkeypatch):
    made = Convolved(*CONVOLUTIONS[case], dtype=dtype, last=last)
    monkeypatch.setattr(Windows, "_right", None)  # no windows are laid out
    found = made.sums()
    # Tensor cores cut digits off where they add. One wrong position of the large image would be 7e-4.
    assert relative(found, made.wanted) < 2e-5
    assert torch.equal(found, made.sums())


@pytest.mark.parametrize(
    "change",
    [{"k": 11}, {"dtype": torch.float32}, {"channels": 16, "groups": 2}, {"space": (3, 3), "pads": (0, 0, 0, 0)}],
    ids=["more sums", "float32", "groups", "one position"],
)
def test_windows_are_laid_out_for_others(change, monkeypatch):
    names = ("m", "each", "channels", "outputs", "space", "window", "stride", "dilation", "pads", "k")
    settings = (
        dict(zip(names, CONVOLUTIONS["odd channels"], strict=True)) | {"dtype": torch.bfloat16, "last": True} | change
    )
    made = Convolved(**settings)
    laid_out, calls = Windows._right, []
    monkeypatch.setattr(Windows, "_right", lambda *args, **kwargs: calls.append(1) or laid_out(*args, **kwargs))
    assert relative(made.sums(), made.wanted) < 1e-5
    assert calls


@pytest.mark.parametrize("last", [True, False], ids=["channels_last", "contiguous"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("m", "each", "channels", "space"), [(64, 1, 64, (32, 32)), (3, 2, 70, (9, 5)), (2, 1, 5, (200, 150))]
)
def test_sums_over_channels(m, each, channels, space, dtype, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x, g = torch.randn(2, m * each, channels, *space, device="cuda") + 3
    x, g = (t.to(dtype, memory_format=layout) for t in (x, g))
    mean, var = (torch.rand(channels, 2, device="cuda") + 0.5).unbind(1)  # not side by side
    kernels = linalg.kernels()
    assert kernels.serves_channels(g, x) and not kernels.serves_channels(g.double(), x)
    normalised = torch.nn.functional.batch_norm(x.double(), mean.double(), var.double())
    wanted = [t.unflatten(0, (m, each)).sum((1, 3, 4)) for t in (g.double() * normalised, g.double())]
    for found, want in zip(kernels.channel_sums(g, x, mean, var, 1e-5, m), wanted, strict=True):
        assert relative(found, want) < 1e-6
