"""The stages of a step, one after the other, against the same maths on whole gradients."""

import pytest
import torch
from torch import nn

from attittud import Eta, decompose
from attittud.autograd.layout import Layout
from attittud.basis.subspace import Stored
from attittud.decompose import combine
from attittud.step.gradients import Gradients
from attittud.workers import Workers

ETAS = {"a": Eta(0.9, 1.2, -0.5), "b": Eta(0.2, 1, 0), "c": Eta(-1, 0.5, 2)}
WEIGHTS = {"a": 1.0, "b": 0.3, "c": -2.0}


def collected(vectors, primary, rows, *, include_mean, early, parts=1):
    """The gradients of some tasks; `early`: all are kept as vectors until the primary is known."""
    layout = Layout(nn.Linear(3, 4).double().named_parameters())
    basis = Stored(layout, len(rows), Workers())
    basis.replace(rows.clone(), torch.ones((), dtype=torch.bool))
    gradients = Gradients(Workers(), include_mean, copied=False)
    gradients.begin(layout, basis)
    gradients.add_primary(layout.views(primary), {})
    if not early:
        gradients.complete_primary()
    for name, vector in vectors.items():
        gradients.start_task(name, ETAS[name], WEIGHTS[name])
        for _ in range(parts):
            gradients.add_auxiliary(name, layout.views(vector / parts), {})
    return gradients


@pytest.mark.parametrize("include_mean", [False, True], ids=["", "include_mean"])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("names", "parts"), [("a", 1), ("abc", 2)])
def test_numbers_combination_and_lift_give_the_update_of_whole_gradients(
    include_mean, names, early, parts
):
    primary, *vectors = torch.randn(1 + len(names), 16, dtype=torch.float64)
    rows = torch.linalg.qr(torch.randn(16, 5, dtype=torch.float64)).Q.T
    tasks = dict(zip(names, vectors, strict=True))
    expected = 0.3 * primary
    for name, vector in tasks.items():
        split = decompose(vector, primary, rows, include_mean=include_mean)
        expected = expected + WEIGHTS[name] * split.combine(ETAS[name])
    gradients = collected(tasks, primary, rows, include_mean=include_mean, early=early, parts=parts)
    numbers = gradients.measure(norms=True, skips=False)
    combination = combine(numbers, 0.3, include_mean=include_mean, dtype=torch.float64)
    for name, (a, square, inner) in combination.tasks.items():
        assert torch.allclose(a[:5], rows @ tasks[name])
        assert torch.allclose(square, tasks[name].square().sum())
        assert torch.allclose(inner, tasks[name] @ primary)
    assert torch.allclose(gradients.lift_(combination), expected)


def test_numbers_do_not_change_when_the_update_is_formed():
    """Stages hand on values: a report reads the numbers after the gradients are overwritten."""
    primary, vector = torch.randn(2, 16, dtype=torch.float64)
    rows = torch.linalg.qr(torch.randn(16, 5, dtype=torch.float64)).Q.T
    gradients = collected({"a": vector}, primary, rows, include_mean=False, early=False)
    numbers = gradients.measure(norms=True, skips=False)
    before = [numbers.p.clone(), numbers.tasks["a"].a.clone()]
    combination = combine(numbers, 0.3, include_mean=False, dtype=torch.float64)
    again = combine(numbers, 0.3, include_mean=False, dtype=torch.float64)
    gradients.lift_(combination)
    assert torch.equal(combination.rows, again.rows)
    assert torch.equal(numbers.p, before[0]) and torch.equal(numbers.tasks["a"].a, before[1])
