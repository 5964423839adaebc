"""Products parameter by parameter: as if each parameter were computed by itself, in a few operations for all of them."""

import pytest
import torch

from attittud.kernels import gram
from attittud.kernels.segments import BLOCK, Segments
from tests.helpers.counting import operations

# Empty ones (shards on other workers), blocks that are just full, and more columns than are worked on at once.
SIZES = [3, 0, 1, BLOCK, BLOCK + 1, 1 << 18, 0, 70_001, 2]
ROWS = 3


def made(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, sum(SIZES), generator=torch.Generator().manual_seed(len(shape)), dtype=dtype)


def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.double().split(SIZES, dim=-1)


def factors(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.fixture
def segments() -> Segments:
    return Segments(SIZES, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_each_segment(segments: Segments, dtype: torch.dtype) -> None:
    rows, x = made(dtype, ROWS), made(dtype)
    expected = torch.stack([part @ own for part, own in zip(parts(rows), parts(x), strict=True)], dim=1)
    torch.testing.assert_close(segments.project(rows, x), expected)
    torch.testing.assert_close(segments.dot(rows[0], x), expected[0])
    found = segments.gram(rows)
    torch.testing.assert_close(found, torch.stack([gram(part) for part in parts(rows)]))
    torch.testing.assert_close(segments.squares(rows), found.diagonal(dim1=1, dim2=2).T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_segment_has_factors_of_its_own(segments: Segments, dtype: torch.dtype) -> None:
    rows, count = made(dtype, ROWS), len(SIZES)
    matrix, numbers = factors(count, ROWS, ROWS).tril(), factors(ROWS, count)

    def joined(found: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(found, dim=-1).to(dtype)

    changed = rows.clone()
    segments.transform_(changed, matrix)
    torch.testing.assert_close(changed, joined([m @ part for m, part in zip(matrix, parts(rows), strict=True)]))
    changed = rows.clone()
    segments.scale_(changed, numbers)
    torch.testing.assert_close(
        changed, joined([n[:, None] * part for n, part in zip(numbers.T, parts(rows), strict=True)])
    )
    x = made(dtype)
    segments.add_rows_(x, rows, numbers)
    expected = [own + n @ part for own, n, part in zip(parts(made(dtype)), numbers.T, parts(rows), strict=True)]
    torch.testing.assert_close(x, joined(expected), rtol=1e-5, atol=1e-5)
    out = made(dtype, 2)
    segments.add_product_(out, matrix[:, 1:], rows)
    pairs = zip(parts(made(dtype, 2)), matrix[:, 1:], parts(rows), strict=True)
    torch.testing.assert_close(out, joined([own + m @ part for own, m, part in pairs]), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_the_same_on_a_gpu_and_in_every_run(segments: Segments, dtype: torch.dtype) -> None:
    rows, on_gpu, weights = made(dtype, ROWS), Segments(SIZES, torch.device("cuda")), factors(ROWS, len(SIZES))
    found = on_gpu.gram(rows.cuda())
    torch.testing.assert_close(found.cpu(), segments.gram(rows))
    assert all(torch.equal(on_gpu.gram(rows.cuda()), found) for _ in range(5))
    x, y = made(dtype), made(dtype).cuda()
    segments.add_rows_(x, rows, weights)
    on_gpu.add_rows_(y, rows.cuda(), weights.cuda())
    torch.testing.assert_close(y.cpu(), x)
    changed = rows.cuda()
    segments.transform_(rows, found.cpu().tril())
    on_gpu.transform_(changed, found.tril())
    torch.testing.assert_close(changed.cpu(), rows, rtol=1e-5, atol=1e-3)


def test_a_worker_without_any_column() -> None:
    segments, nothing = Segments([0, 0], torch.device("cpu")), torch.empty(2, 0)
    assert torch.equal(segments.gram(nothing), torch.zeros(2, 2, 2, dtype=torch.float64))
    segments.transform_(nothing, torch.zeros(2, 2, 2, dtype=torch.float64))
    segments.add_rows_(nothing[0], nothing, torch.zeros(2, 2, dtype=torch.float64))


def test_only_its_own_segment_becomes_nan(segments: Segments) -> None:
    x = made(torch.float32)
    x[-1] = torch.nan
    found = segments.dot(x, x)
    assert found[-1].isnan() and found[:-1].isfinite().all()


def test_the_number_of_operations_is_that_of_one_segment() -> None:
    def count(number: int) -> int:
        segments, rows = Segments([7] * number, torch.device("cpu")), torch.randn(2, 7 * number)
        with operations() as found:
            matrix = segments.gram(rows)
            segments.transform_(rows, matrix)
            segments.scale_(rows, segments.squares(rows))
            segments.add_rows_(rows[0], rows, segments.project(rows, rows[1]))
        return found.total()

    assert count(1) == count(500)
