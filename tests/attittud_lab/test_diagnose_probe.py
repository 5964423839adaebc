"""The figures of one step against explicit computations."""

import numpy as np
import pytest
import torch

from attittud import decompose
from attittud_lab.diagnose import batch_sizes
from attittud_lab.errors import InputError
from tests.helpers.diagnosis import Linear, normal


@pytest.mark.parametrize("basis", ["sketch", "mean", "canonical"])
@pytest.mark.parametrize("include_mean", [False, True])
def test_the_numbers_of_a_step_equal_explicit_computations(basis: str, include_mean: bool) -> None:
    include_mean = include_mean and basis != "canonical"
    job = Linear(normal(40, 30) + 0.3, one=normal(30), two=normal(30))
    probe = job.probe(basis=basis, include_mean=include_mean)
    for step in range(7):
        found = probe.measure(step)
    assert all(parameter.grad is None for parameter in job.model.parameters())
    saved = probe.guide.state_dict()["basis"]
    rows = torch.eye(30, dtype=torch.float64) if saved is None else saved
    halves = probe.halves(6)
    g1, g2 = (job.rows[half].mean(0) for half in halves)
    fresh = (g1 + g2) / 2
    assert float(found.captured_primary) == pytest.approx(float((rows @ fresh).norm() ** 2 / fresh.norm() ** 2))
    assert int(found.agreeing) == int(((rows @ g1) * (rows @ g2) > 0).sum()) and int(found.compared) == len(rows)
    for name, gradient in job.sources.items():
        parts = decompose(gradient, fresh, rows, include_mean=include_mean)
        wanted = [
            [float(getattr(parts, part)[piece].square().sum()) for part in ("helpful", "harmful", "neutral")]
            for piece in (slice(0, 6), slice(6, 30))
        ]
        assert found.gradients[name].tolist() == pytest.approx(
            [float(g.square().sum()) for g in gradient.split([6, 24])]
        )
        assert found.squares[name].tolist() == pytest.approx(np.array(wanted), rel=1e-9, abs=1e-12)
        opposed = ((rows @ gradient) * (rows @ fresh) < 0).double().mean()
        assert float(found.opposed[name]) == pytest.approx(float(opposed))
    assert probe.groups == ["a", "b"]


def test_the_basis_is_never_built_from_the_examples_that_judge_it() -> None:
    job = Linear(normal(30, 20), one=normal(20))
    probe = job.probe(basis_batch=12, primary_batch=10)
    for step in range(10):
        refreshed, job.calls[:] = step % 5 == 0, []
        probe.measure(step)
        if refreshed:
            (basis,) = (rows for rows in job.calls if len(rows) == 12)
            job.calls.remove(basis)
        assert {len(rows) for rows in job.calls} == {5} and not any(rows & basis for rows in job.calls)


def test_batches_are_made_smaller_where_examples_are_few() -> None:
    assert batch_sizes(100, 32, 32) == (32, 32) and batch_sizes(100, 32, 31) == (32, 30)
    assert batch_sizes(40, 32, 32) == (20, 20) and batch_sizes(4, 32, 32) == (2, 2) and batch_sizes(9, 2, 1) == (2, 2)
    with pytest.raises(InputError, match=r"data\.primary\.train"):
        batch_sizes(3, 2, 2)
