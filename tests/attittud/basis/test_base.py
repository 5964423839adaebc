"""The random numbers of a refresh: one matrix, of which every worker can take a part."""

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.basis.base import AHEAD, Ahead, Refresh, gaussian, orthonormalise_
from attittud.workers.one import Workers
from tests.helpers.oracle import distance, gram_schmidt, jacobian
from tests.helpers.zoo import problem


def test_an_entry_does_not_depend_on_which_part_of_the_matrix_is_requested():
    whole = gaussian(3, 1, rows=7, first=0, columns=40)
    assert torch.equal(gaussian(3, 1, rows=4, first=11, columns=9), whole[:4, 11:20])


@pytest.mark.parametrize(("seed", "refresh"), [(4, 1), (3, 2), (1, 3)])
def test_seed_and_refresh_index_matter(seed, refresh):
    a = gaussian(3, 1, rows=5, first=0, columns=2000)
    b = gaussian(seed, refresh, rows=5, first=0, columns=2000)
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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("columns", [1, 33])
def test_numbers_made_ahead_equal_numbers_made_on_demand(columns, device):
    """Also after a state was loaded, which may go back, and for other columns of the matrix."""
    ahead, device = Ahead(), torch.device(device)
    layout = Layout(nn.Linear(1, 1, device=device).named_parameters())
    for number in (*range(2 * AHEAD + 1), 3, 200, 201):
        for first in (0, 7):
            refresh = Refresh(
                layout, 4, 11, torch.tensor(number), Workers(), ahead.begin(number, device)
            )
            found = refresh.gaussian(4, first, columns, dtype=torch.float64)
            assert torch.equal(
                found, gaussian(11, number, rows=4, first=first, columns=columns, device=device)
            )


def test_numbers_of_a_captured_refresh_are_made_on_the_device(monkeypatch):
    """Only the device counts its replays, so later refreshes cannot know their number."""
    ahead, device = Ahead(), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert ahead.begin(0, device) is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert ahead.begin(1, device) is None


@pytest.mark.parametrize(
    ("rank", "dtype"), [(1, torch.float64), (6, torch.float64), (3, torch.float32)]
)
def test_sketch_is_gram_schmidt_in_row_order(rank, dtype):
    p = problem("mlp", dtype)
    guide = Guide(p.model, eta=Eta(1, 0, 0), rank=rank, seed=7)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    double = p.to(torch.float64)
    sketch = gaussian(7, 0, rows=rank, first=0, columns=6) @ jacobian(
        double.losses(), double.model, guide.shared_parameters
    )
    want = gram_schmidt(sketch)
    assert distance(guide.state_dict()["basis"], want) < (1e-12 if dtype == torch.float64 else 1e-5)
    if rank > 1:  # the same span in another order would be another basis
        assert distance(gram_schmidt(sketch.flip(0)).flip(0), want) > 1e-2


@pytest.mark.parametrize("most", [3, torch.tensor(3), 9])
def test_only_as_many_rows_keep_a_direction_as_there_are_examples(most):
    rows = gaussian(0, 0, rows=5, columns=8)
    want = gram_schmidt(rows[: int(most)])
    orthonormalise_(rows, most=most)
    assert distance(rows[: len(want)], want) < 1e-12
    assert not rows[len(want) :].any()
