"""One direction for each protected set."""

import pytest
import torch

from attittud import Eta, Guide
from tests.helpers.oracle import gradients
from tests.helpers.zoo import problem

SETTINGS = {"eta": Eta(neutral=1, helpful=0, harmful=0), "basis": "sets", "primary_weight": 0.0}


def flat(found, names):
    return torch.cat([found[name].reshape(-1) for name in names])


def test_the_update_is_orthogonal_to_the_gradient_of_every_set():
    p = problem("mlp", torch.float64, m=9)
    sets = [p.losses(slice(0, 3)).mean(), 1e-9 * p.losses(slice(3, 9)).mean()]  # the size of a loss does not matter
    guide = Guide(p.model, **SETTINGS)
    report = guide.backward(primary=torch.stack(sets), auxiliary=p.loss())
    names = list(guide.shared_parameters)
    update = flat(p.grads(), names)
    assert int(report.effective_rank) == 2 and update.norm() > 0.01
    for at, size in ((slice(0, 3), 1), (slice(3, 9), 1)):
        gradient = flat(gradients(size * p.losses(at).mean(), p.model), names)
        assert abs(update @ gradient) < 1e-12 * update.norm() * gradient.norm()


def test_one_set_equals_the_basis_mean():
    results = []
    for options in ({}, {"basis": "mean"}):
        p = problem("mlp", torch.float64, m=9)
        Guide(p.model, **SETTINGS | options).backward(primary=p.losses().mean()[None], auxiliary=p.loss())
        results.append(p.grads())
    assert all(torch.allclose(results[0][name], results[1][name], atol=1e-12) for name in results[0])


@pytest.mark.parametrize("callable_", [False, True])
@pytest.mark.parametrize("scope", ["model", "tensor"])
def test_one_set_needs_no_pass_of_its_own(scope, callable_):
    p = problem("mlp", torch.float64, m=9)
    guide, passes = Guide(p.model, **SETTINGS, scope=scope), []
    next(p.model.parameters()).register_hook(lambda gradient: passes.append("a gradient"))

    def primary():
        return p.losses().mean()[None]

    guide.backward(primary=primary if callable_ else primary(), auxiliary=p.loss())
    assert len(passes) == 2  # the protected loss and the new one


def test_one_set_in_several_calls_and_from_basis_losses():
    updates = []
    for number in range(3):
        p = problem("mlp", torch.float64, m=8)
        guide = Guide(p.model, **SETTINGS)
        if number == 0:
            guide.backward(primary=p.losses().mean()[None], auxiliary=p.loss())
        elif number == 1:
            for at in (slice(0, 4), slice(4, 8)):
                guide.primary(p.losses(at).mean()[None] / 2)
            guide.auxiliary(p.loss())
            guide.combine()
        else:
            basis = lambda p=p: p.losses().mean()[None]  # noqa: E731
            guide.backward(primary=p.losses(slice(0, 3)).mean()[None], auxiliary=p.loss(), basis_losses=basis)
        updates.append(flat(p.grads(), guide.shared_parameters))
    assert all(torch.allclose(updates[0], other, atol=1e-12) for other in updates[1:])


def test_losses_of_single_examples_are_refused_as_sets():
    p = problem("mlp", torch.float64, m=9)
    with pytest.raises(ValueError, match="average them over each set"):
        Guide(p.model, **SETTINGS, rank=4).backward(primary=p.losses(), auxiliary=p.loss())


def test_several_primary_calls_add_up():
    p = problem("mlp", torch.float64, m=8)
    guide = Guide(p.model, **SETTINGS)
    for at in (slice(0, 2), slice(2, 4)):
        other = slice(at.start + 4, at.stop + 4)
        guide.primary(torch.stack([p.losses(at).mean(), p.losses(other).mean()]) / 2)
    guide.auxiliary(p.loss())
    guide.combine()
    names = list(guide.shared_parameters)
    update = flat(p.grads(), names)
    gradient = flat(gradients(p.losses(slice(0, 4)).mean(), p.model), names)
    assert abs(update @ gradient) < 1e-12 * update.norm() * gradient.norm()
