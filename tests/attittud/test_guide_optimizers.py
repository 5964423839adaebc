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


def train(
    p: Problem,
    fill,
    make_optimizer,
    steps: int = 4,
    clip=None,
    set_to_none: bool = True,
) -> None:
    optimizer = make_optimizer(p.model)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        fill()
        if clip:
            clip(p.model.parameters())
        optimizer.step()


def assert_same_training(name: str = "mlp", **options) -> None:
    """Training through a guide with equal weights = training on the plain weighted sum, bit for
    bit.
    """
    one, other = problem(name), problem(name)
    start = [x.clone() for x in one.model.parameters()]
    train(one, guided(one), **options)
    train(other, lambda: set_gradients(other), **options)
    for (parameter, x), y in zip(
        one.model.named_parameters(), other.model.parameters(), strict=True
    ):
        assert torch.equal(x, y), parameter
    assert any(not torch.equal(x, y) for x, y in zip(start, one.model.parameters(), strict=True))


def build(name: str, **options):
    def make(model: nn.Module) -> torch.optim.Optimizer:
        kind = getattr(torch.optim, name)
        params = (
            [x for x in model.parameters() if x.ndim == 2]
            if name == "Muon"
            else list(model.parameters())
        )
        return kind(params, lr=0.01, **options)

    return make


@pytest.mark.parametrize("name", ["SGD", "Adafactor", "Muon"])
def test_optimizers_work(name):
    assert_same_training(make_optimizer=build(name))


@pytest.mark.parametrize(
    ("name", "options"),
    [("mlp", {"fused": True}), ("channels_last", {"foreach": True}), ("odd", {"foreach": False})],
    ids=str,
)
def test_every_implementation_of_adam_works(name, options):
    assert_same_training(name, make_optimizer=build("AdamW", **options))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradient_clipping_works(set_to_none):
    """Clipping works in place and comes last: the next step does not see it."""
    assert_same_training(
        make_optimizer=build("SGD", momentum=0.9),
        clip=lambda x: nn.utils.clip_grad_norm_(x, 0.1),
        set_to_none=set_to_none,
    )


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
