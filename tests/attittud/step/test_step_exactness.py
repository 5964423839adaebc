"""``Eta(c, c, c)`` is plain multitask training, bit for bit."""

from contextlib import nullcontext

import pytest
import torch

from attittud import Eta, Guide
from tests.helpers.oracle import gradients
from tests.helpers.zoo import Problem, problem

WEIGHT = 0.3
NAMES = ["mlp", "cnn_batch_norm", "transformer", "tied_module", "tied_function", "frozen", "unused"]

NAMES += ["odd", "channels_last", "lstm"]


def assert_exact(p: Problem, primary, auxiliary, c: float, weight: float = WEIGHT) -> None:
    """Compare ``.grad`` with two ``torch.autograd.grad`` calls on the same graphs."""
    g_p, g_a = gradients(primary.mean(), p.model), gradients(auxiliary, p.model)
    yield  # the caller runs the guide on these graphs
    for name, parameter in p.model.named_parameters():
        a, b, got = g_a.get(name), g_p.get(name), parameter.grad
        if a is None and b is None:
            assert got is None, name
            continue
        if a is None or b is None:
            assert torch.equal(got, b if a is None else a), name
        else:
            if a.dtype.itemsize == 2:  # computed in float32, rounded once
                a, b = a.float(), b.float()
            assert torch.equal(got, (c * a + weight * b).to(got.dtype)), name
        assert got.stride() == parameter.stride() and got.dtype == parameter.dtype, name
        assert got.is_leaf and not got.requires_grad, name


def check(p: Problem, c: float, amp=nullcontext, **options) -> None:
    guide = Guide(
        p.model, eta=Eta(c, c, c), primary_weight=WEIGHT, rank=3, refresh_every=2, **options
    )
    for _ in range(3):  # with a refresh, without, with a refresh
        p.model.zero_grad()
        with amp():
            primary, auxiliary = p.losses(), p.loss()
        comparison = assert_exact(p, primary, auxiliary, c)
        next(comparison)
        guide.backward(primary=primary, auxiliary=auxiliary)
        next(comparison, None)


@pytest.mark.parametrize(
    ("name", "dtype", "c"),
    [
        *((name, torch.float32, 1) for name in NAMES),
        ("mlp", torch.float64, 1),
        ("transformer", torch.float32, -0.5),
    ],
    ids=str,
)
def test_equal_weights_are_exact_in_full_precision(name, dtype, c):
    check(problem(name, dtype), c)


@pytest.mark.parametrize(
    ("name", "c"), [("mlp", -0.5), ("cnn_batch_norm", 1), ("transformer", 1), ("tied_module", 1)]
)
def test_equal_weights_are_exact_under_bf16_autocast(name, c):
    check(problem(name), c, amp=lambda: torch.autocast("cpu", torch.bfloat16))


@pytest.mark.parametrize(
    "options",
    [{"basis": b} for b in ("svd", "exact", "mean", "random", "canonical")]
    + [
        {"include_mean": True},
        {"engine": "loop"},
        {"basis_dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_equal_weights_are_exact_with_every_setting(options):
    check(problem("mlp"), 0.5, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_rounded_once(dtype):
    check(problem("mlp").to(dtype), 0.5)


def test_equal_weights_are_exact_for_parameters_of_mixed_precision():
    p = problem("mlp")
    p.model.body[2].bfloat16()
    p.model.body[1].register_forward_hook(lambda module, args, out: out.bfloat16())
    p.model.body[3].register_forward_hook(lambda module, args, out: out.float())
    check(p, 2)


def test_vector_of_auxiliary_losses_counts_as_its_mean():
    one, other = problem("mlp"), problem("mlp")
    for p, mean in ((one, False), (other, True)):
        losses = p.model.body(p.xa).square().mean(1)
        guide = Guide(p.model, eta=Eta(1, 0.5, -1), rank=3)
        guide.backward(primary=p.losses(), auxiliary=losses.mean() if mean else losses)
    assert all(
        torch.equal(g, other.grads()[name]) for name, g in one.grads().items() if g is not None
    )


def test_the_update_is_added_to_an_existing_grad():
    p = problem("mlp")
    guide = Guide(p.model, eta=Eta(1, 1, 1), primary_weight=WEIGHT, rank=3)
    g_p, g_a = gradients(p.losses().mean(), p.model), gradients(p.loss(), p.model)
    before = {name: torch.randn_like(x) for name, x in p.model.named_parameters()}
    for name, x in p.model.named_parameters():
        x.grad = before[name].clone()
    guide.backward(primary=p.losses(), auxiliary=p.loss())
    for name, x in p.model.body.named_parameters(prefix="body"):
        assert torch.equal(x.grad, before[name] + (g_a[name] + WEIGHT * g_p[name])), name
    assert torch.equal(
        p.model.heads["primary"].bias.grad, before["heads.primary.bias"] + g_p["heads.primary.bias"]
    )
