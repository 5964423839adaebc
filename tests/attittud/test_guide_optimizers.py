"""Whatever consumes ``.grad`` works unchanged: optimizers, clipping, schedulers, loss scaling."""

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from tests.helpers.oracle import gradients
from tests.helpers.zoo import Problem, problem

WEIGHT = 0.3


def set_gradients(p: Problem) -> None:
    """The plain weighted sum into ``.grad``, by hand."""
    g_p, g_a = gradients(p.losses().mean(), p.model), gradients(p.loss(), p.model)
    for name, x in p.model.named_parameters():
        a, b = g_a[name], g_p[name]
        x.grad = (a + WEIGHT * b if a is not None else b) if b is not None else a


def guided(p: Problem):
    guide = Guide(p.model, eta=Eta(1, 1, 1), primary_weight=WEIGHT, rank=3, refresh_every=2)
    return lambda: guide.backward(primary=p.losses(), auxiliary=p.loss())


def train(p: Problem, fill, set_to_none: bool) -> None:
    optimizer = torch.optim.AdamW(p.model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad(set_to_none=set_to_none)
        fill()
        nn.utils.clip_grad_norm_(p.model.parameters(), 0.1)
        optimizer.step()


@pytest.mark.parametrize(
    ("name", "set_to_none"), [("mlp", True), ("channels_last", False), ("odd", True)]
)
def test_training_equals_training_on_the_plain_weighted_sum(name, set_to_none):
    """Bit for bit. Clipping works in place and comes last: the next step does not see it."""
    one, other = problem(name), problem(name)
    start = [x.clone() for x in one.model.parameters()]
    train(one, guided(one), set_to_none)
    train(other, lambda: set_gradients(other), set_to_none)
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))
    assert not all(map(torch.equal, start, one.model.parameters()))


@pytest.mark.parametrize("name", ["mlp", "channels_last", "odd", "transformer"])
def test_grad_looks_as_after_plain_backward(name):
    one, other = problem(name), problem(name)
    guided(one)()
    (other.losses().mean() + other.loss()).backward()
    for (parameter, x), y in zip(
        one.model.named_parameters(), other.model.parameters(), strict=True
    ):
        assert x.grad.shape == y.grad.shape, parameter
        assert x.grad.dtype == y.grad.dtype, parameter
        assert x.grad.stride() == y.grad.stride() or y.grad.numel() < 2, parameter
        assert not x.grad.requires_grad
        assert x.grad.is_leaf


def test_gradients_do_not_share_memory():
    """Scaling one ``.grad`` in place must not change another."""
    p = problem("mlp")
    guided(p)()
    before = {name: g.clone() for name, g in p.grads().items()}
    for name, g in p.grads().items():
        g.mul_(2)
        assert torch.equal(g, 2 * before[name])
    assert all(torch.equal(g, 2 * before[name]) for name, g in p.grads().items())
