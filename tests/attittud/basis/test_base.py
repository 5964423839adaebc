"""The random numbers of a refresh: one fixed matrix per seed and refresh, of which every worker can
take a part.
"""

import pytest
import torch

from attittud.basis.base import gaussian


def test_an_entry_does_not_depend_on_which_part_of_the_matrix_is_requested():
    whole = gaussian(3, 1, rows=7, first=0, columns=40)
    assert torch.equal(gaussian(3, 1, rows=4, first=11, columns=9), whole[:4, 11:20])


@pytest.mark.parametrize(("seed", "refresh"), [(4, 1), (3, 2), (1, 3)])
def test_seed_and_refresh_index_matter(seed, refresh):
    a, b = (
        gaussian(3, 1, rows=5, first=0, columns=2000),
        gaussian(seed, refresh, rows=5, first=0, columns=2000),
    )
    assert torch.corrcoef(torch.stack([a.reshape(-1), b.reshape(-1)]))[0, 1].abs() < 0.05


def test_numbers_are_standard_normal():
    x = gaussian(0, 0, rows=50, first=0, columns=4000)
    assert x.dtype == torch.float64
    flat = x.reshape(-1).sort().values
    normal = torch.distributions.Normal(0.0, 1.0).cdf(flat)
    uniform = torch.arange(1, len(flat) + 1) / len(flat)
    assert (normal - uniform).abs().max() < 1.95 / len(flat) ** 0.5  # Kolmogorov-Smirnov, p = 0.001
    correlation = torch.corrcoef(x) - torch.eye(50, dtype=x.dtype)
    assert correlation.abs().max() < 0.09  # rows are independent: 5.5 standard deviations


def test_the_global_random_state_does_not_change():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    a = gaussian(0, 0, rows=2, first=0, columns=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(gaussian(0, 0, rows=2, first=0, columns=3), a)


def test_numbers_have_the_requested_dtype():
    x = gaussian(0, 0, rows=2, first=0, columns=3)
    assert torch.equal(gaussian(0, 0, rows=2, first=0, columns=3, dtype=torch.float32), x.float())
