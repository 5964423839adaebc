"""scope="tensor": every parameter is treated as if it were the only one."""

import pytest
import torch

from attittud import Eta, Guide
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
