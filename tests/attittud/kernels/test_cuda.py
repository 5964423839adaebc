"""The Triton kernels against float64, and against the plain torch they stand in for."""

import pytest
import torch

from attittud import kernels as linalg
from attittud.basis.base import orthonormalise_
from tests.helpers.on_gpu import relative

pytestmark = pytest.mark.gpu


def test_transform_equals_a_matrix_product(rows):
    matrix = torch.randn(len(rows), len(rows), dtype=torch.float64, device="cuda")
    for kept in {1, (len(rows) + 1) // 2, len(rows)}:
        wanted = matrix[:kept] @ rows.double()
        copy = rows.clone()
        assert relative(linalg.transform_(copy, matrix[:kept]), wanted) < 1e-6
        assert torch.equal(copy[kept:], rows[kept:])


def test_transform_by_a_lower_triangular_matrix_equals_a_matrix_product(rows):
    matrix = torch.randn(len(rows), len(rows), dtype=torch.float64, device="cuda").tril()
    wanted = matrix @ rows.double()
    assert relative(linalg.transform_(rows, matrix, lower=True), wanted) < 1e-6


@pytest.mark.parametrize("rank", ["full", "half", "none"])
def test_factors_equal_plain_torchs(rows, rank):
    k = len(rows)
    if rank == "half":
        rows = torch.randn(k, (k + 1) // 2, device="cuda") @ rows[: (k + 1) // 2]
    elif rank == "none":
        rows.zero_()
    matrix = linalg.gram(rows)
    factor, inverse = linalg.factorise(matrix, 1e-4)
    wanted, wanted_inverse = (x.cuda() for x in linalg.factorise(matrix.cpu(), 1e-4))
    torch.testing.assert_close(factor, wanted, rtol=1e-6, atol=1e-8 * float(wanted.abs().max()))
    torch.testing.assert_close(
        inverse, wanted_inverse, rtol=1e-4, atol=1e-6 * float(wanted_inverse.abs().max())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_copied_only_if_they_are_finite(rows, dtype):
    old = torch.randn_like(rows).to(dtype)
    before = old.clone()
    linalg.take_(old, rows, torch.zeros((), dtype=torch.bool, device="cuda"))
    assert torch.equal(old, before)
    linalg.take_(old, rows, torch.ones((), dtype=torch.bool, device="cuda"))
    assert torch.equal(old, rows.to(dtype))


@pytest.mark.parametrize(
    ("k", "m", "size"), [(5, 64, 300_000), (10, 32, 131_072), (12, 7, 200_001), (20, 9, 200_000)]
)
def test_add_product_adds_a_matrix_product(k, m, size):
    """Into some of the columns of a larger matrix, with some of the columns of the weights."""
    whole = torch.randn(k, size + 100, device="cuda")
    weights = torch.randn(k, m + 5, device="cuda")[:, 3 : 3 + m]
    rows, before = torch.randn(m, size, device="cuda"), whole.clone()
    linalg.add_product_(whole[:, 50:-50], weights, rows)
    assert (
        relative(whole[:, 50:-50], before[:, 50:-50].double() + weights.double() @ rows.double())
        < 1e-6
    )
    assert torch.equal(whole[:, :50], before[:, :50])
    assert torch.equal(whole[:, -50:], before[:, -50:])


def test_orthonormalised_rows_are_orthonormal(rows):
    orthonormalise_(rows)
    identity = torch.eye(len(rows), dtype=torch.float64, device="cuda")
    assert float((rows.double() @ rows.double().T - identity).abs().max()) < 2e-6


def test_dependent_rows_become_zero():
    rows = torch.randn(4, 5000, device="cuda")
    rows = torch.cat([rows, rows.flip(0) * 3])
    orthonormalise_(rows)
    assert torch.equal(rows[4:], torch.zeros_like(rows[4:]))


@pytest.mark.parametrize("k", [8, 20])
def test_rows_beyond_the_number_of_examples_become_zero(k):
    """Four examples span four directions, also where few parameters carry all of the gradient."""
    examples = torch.randn(4, 300_000, device="cuda")
    examples[:, 300:] *= 1e-6
    rows = torch.randn(k, 4, device="cuda") @ examples
    orthonormalise_(rows)
    assert torch.equal(rows[4:], torch.zeros_like(rows[4:]))
    assert (rows[:4].double().norm(dim=1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_equal_float64(rows, dtype):
    x, y = torch.randn(2, rows.shape[1], device="cuda")
    rows = rows.to(dtype)
    found = linalg.products(rows, x, y)
    V, u, v = rows.double(), x.double(), y.double()
    scale = V.norm() * u.norm()
    assert float((found.rows_x - V @ u).norm() / scale) < 1e-13
    assert float((found.rows_y - V @ v).norm() / scale) < 1e-13
    shown = [float(z) for z in (found.xx, found.yy, found.xy)]
    assert shown == pytest.approx([float(u @ u), float(v @ v), float(u @ v)], rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 3_000_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_inner_product_equals_float64_and_makes_no_long_copy(size, dtype):
    x, y = torch.randn(size, device="cuda").to(dtype), torch.randn(size, device="cuda")
    linalg.dot(x, y)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = linalg.dot(x, y)
    assert torch.cuda.max_memory_allocated() - before <= 1 << 17
    assert float(found) == pytest.approx(float(x.double() @ y.double()), rel=1e-12, abs=1e-9)


def test_the_inner_product_takes_every_second_number_of_a_vector():
    x, y = torch.randn(2, 1000, device="cuda")
    wanted = float(x[::2].double() @ y[::2].double())
    assert float(linalg.dot(x[::2], y[::2])) == pytest.approx(wanted, rel=1e-12)
    found = float(linalg.dot(x[:500], y[::2]))
    assert found == pytest.approx(float(x[:500].double() @ y[::2].double()), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lift_equals_float64(rows, dtype):
    x, y = torch.randn(2, rows.shape[1], device="cuda")
    rows, weights = rows.to(dtype), torch.randn(len(rows), device="cuda", dtype=torch.float64)
    factor = torch.full((), 0.1, dtype=torch.float64, device="cuda")
    wanted = 0.7 * x.double() + rows.double().T @ weights + 0.1 * y.double()
    assert relative(linalg.lift_(rows, weights, x.clone(), y.clone(), 0.7, factor), wanted) < 1e-6


@pytest.mark.parametrize("c", [1.0, 0.5, 2.0, -1.0, 0.3])
def test_lift_with_zero_weights_is_exact(rows, c):
    x, y = torch.randn(2, rows.shape[1], device="cuda")
    factor = torch.full((), 0.1, dtype=torch.float64, device="cuda")
    nothing = torch.zeros(len(rows), device="cuda", dtype=torch.float64)
    assert torch.equal(
        linalg.lift_(rows, nothing, x.clone(), y.clone(), c, factor), c * x + 0.1 * y
    )


def test_gram_matrices_equal_float64(rows):
    assert relative(linalg.gram(rows), rows.double() @ rows.double().T) < 1e-13


def test_gram_matrices_are_the_same_in_every_run(rows):
    assert torch.equal(linalg.gram(rows), linalg.gram(rows))
