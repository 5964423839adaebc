"""scope="tensor": every parameter is treated as if it were the only one."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from attittud import Eta, Guide, preset
from tests.helpers.counting import operations, own_calls
from tests.helpers.oracle import error
from tests.helpers.zoo import problem

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


@pytest.mark.parametrize("basis", ["mean", "sketch", "exact", "svd", "running_mean"])
def test_each_tensor_gets_the_update_of_a_guide_for_this_tensor_alone(basis):
    settings = {"eta": ETA, "basis": basis, "rank": 3, "primary_weight": 0.3}
    p = problem("mlp", torch.float64, m=9)
    guide = Guide(p.model, scope="tensor", **settings)
    report = guide.backward(primary=p.losses(), auxiliary=p.loss())
    together, names = p.grads(), list(guide.shared_parameters)
    assert len(names) > 2
    rank = 1 if "mean" in basis else 3
    assert int(report.effective_rank) == rank * len(names)
    for name in names:
        p.model.zero_grad()
        parameter = dict(p.model.named_parameters())[name]
        Guide(p.model, parameters=[parameter], **settings).backward(primary=p.losses(), auxiliary=p.loss())
        assert error({name: together[name]}, {name: p.grads()[name]}) < 1e-10


def test_parts_add_up_and_equal_weights_are_the_plain_sum():
    p = problem("mlp", torch.float64, m=9)
    report = Guide(p.model, eta=ETA, scope="tensor", rank=3).backward(primary=p.losses(), auxiliary=p.loss())
    squares = [float(getattr(report, part)) ** 2 for part in ("neutral", "helpful", "harmful")]
    p.model.zero_grad()
    other = Guide(p.model, eta=(1, 1, 1), rank=3).backward(primary=p.losses(), auxiliary=p.loss())
    assert sum(squares) == pytest.approx(
        sum(float(getattr(other, part)) ** 2 for part in ("neutral", "helpful", "harmful"))
    )
    plain = p.grads()
    p.model.zero_grad()
    Guide(p.model, eta=(1, 1, 1), scope="tensor", rank=3).backward(primary=p.losses(), auxiliary=p.loss())
    assert all(torch.equal(p.grads()[name], plain[name]) for name in plain)


def test_include_mean_works_and_the_basis_can_be_saved():
    p = problem("mlp", torch.float64, m=9)
    settings = {"eta": ETA, "scope": "tensor", "rank": 3, "include_mean": True}
    guide = Guide(p.model, **settings)
    report = guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert float(report.captured_primary) == pytest.approx(1)
    p.model.zero_grad()
    again = Guide(p.model, **settings)
    again.load_state_dict(guide.state_dict())
    again.backward(primary=p.losses(), auxiliary=p.loss())
    loaded = p.grads()
    p.model.zero_grad()
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    assert all(torch.equal(p.grads()[name], loaded[name]) for name in loaded)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"basis": "canonical"}, "canonical"),
        ({"engine": "implicit", "basis": "exact"}, "implicit"),
        ({"basis_dtype": torch.bfloat16}, "basis_dtype"),
        ({"scope": "layer"}, "'model' or 'tensor'"),
    ],
)
def test_unsupported_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Guide(problem("mlp", torch.float64, m=9).model, **{"eta": ETA, "scope": "tensor"} | options)


def test_a_state_of_another_scope_is_refused():
    p = problem("mlp", torch.float64, m=9)
    guide = Guide(p.model, eta=ETA, scope="tensor", rank=3)
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    with pytest.raises(ValueError, match="scope='tensor'"):
        Guide(p.model, eta=ETA, rank=3).load_state_dict(guide.state_dict())
    with pytest.raises(ValueError, match="scope='model'"):
        guide.subspace.squares(guide.subspace.rows[0], guide.subspace.rows[0])


class Many(nn.Module):
    """A network of many small tensors, as a model with LoRA has."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ParameterList([torch.randn(8 + i % 3) for i in range(tensors)])

    def forward(self, x: float) -> torch.Tensor:
        return torch.stack([(x * part).sin().sum() for part in self.parts]).sum()


def steps_of(tensors: int) -> tuple[nn.Module, Guide, Callable[..., None]]:
    """A guide after some steps, with losses that are computed outside of what is counted."""
    model = Many(tensors)
    guide = Guide(model, **preset("ogpsa"))

    def step(primary: torch.Tensor | None, auxiliary: torch.Tensor) -> None:
        model.zero_grad()
        guide.primary(primary, refresh=primary is not None)
        guide.auxiliary(auxiliary)
        guide.combine()

    for refresh in (True, False, True, False):
        step(model(0.3)[None] if refresh else None, model(0.7))
    return model, guide, step


def counted(tensors: int, *, refresh: bool) -> tuple[int, int]:
    """Operations without those of the backward passes, and our own functions."""
    model, _, step = steps_of(tensors)
    with operations() as passes:
        for x in (0.3, 0.7) if refresh else (0.7,):
            torch.autograd.grad(model(x), list(model.parameters()))
    with operations() as forward:
        for x in (0.3, 0.7) if refresh else (0.7,):
            model(x)
    losses = model(0.3)[None] if refresh else None, model(0.7)
    with operations() as found:
        step(*losses)
    # A graph is known by its number of nodes, so there must be only those of a usual step.
    losses = model(0.3)[None] if refresh else None, model(0.7)
    return found.total() - passes.total() + forward.total(), own_calls(lambda: step(*losses))


@pytest.mark.parametrize(("refresh", "operations", "calls"), [(False, 80, 180), (True, 200, 400)])
def test_a_step_has_the_same_operations_for_any_number_of_tensors(refresh, operations, calls):
    few, many = counted(50, refresh=refresh), counted(300, refresh=refresh)
    assert few == many and few[0] <= operations and few[1] <= calls


@pytest.mark.parametrize("basis", ["sets", "mean", "running_mean", "sketch", "exact", "svd"])
def test_one_tensor_that_is_not_finite_keeps_the_basis_of_all(basis):
    model = Many(4)
    guide = Guide(model, eta=ETA, basis=basis, scope="tensor", rank=2, refresh_every=1)
    guide.backward(primary=torch.stack([model(0.3), model(0.5)]), auxiliary=model(0.7))
    before = guide.subspace.rows.clone()
    broken = torch.stack([model(0.4), model(0.6)]) + model.parts[1][0] * torch.tensor(float("inf"))
    assert not bool(guide.backward(primary=broken, auxiliary=model(0.7)).skipped_refreshes == 0)
    assert torch.equal(guide.subspace.rows, before)


@pytest.mark.parametrize("basis", ["sets", "mean", "running_mean", "sketch"])
def test_finishing_all_parameters_at_once_equals_one_by_one(basis, monkeypatch):
    updates = []
    for together in (True, False):
        p = problem("mlp", torch.float64, m=9)
        guide = Guide(p.model, eta=ETA, basis=basis, scope="tensor", rank=3, refresh_every=1)
        assert guide.basis.together
        monkeypatch.setattr(type(guide.basis), "together", together)
        for at in (slice(0, 3), slice(3, 6)):  # a running mean goes on from the first
            p.model.zero_grad()
            guide.backward(primary=p.losses(at), auxiliary=p.loss())
        updates.append(p.grads())
    assert error(*updates) < 1e-12
