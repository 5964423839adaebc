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
        if g_p[name] is None or g_a[name] is None:
            x.grad = g_p[name] if g_a[name] is None else g_a[name]
        else:
            x.grad = g_a[name] + WEIGHT * g_p[name]


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
    """Bit for bit. Clipping works in place, so no two gradients may share memory."""
    one, other = problem(name), problem(name)
    start = [x.clone() for x in one.model.parameters()]
    guide = Guide(one.model, eta=Eta(1, 1, 1), primary_weight=WEIGHT, rank=3, refresh_every=2)
    train(one, lambda: guide.backward(one.losses(), one.loss()), set_to_none)
    train(other, lambda: set_gradients(other), set_to_none)
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))
    assert not all(map(torch.equal, start, one.model.parameters()))
