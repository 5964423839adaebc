"""Engines check themselves in the first refresh: later batches that they still notice, and later
batches that they do not.

Unnoticed batches are strict expected failures here and a list in docs/engines.md.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attittud.engine import UnsupportedError
from tests.helpers.later_batches import Case, data, later, losses_of, raw
from tests.helpers.layers import Function, Own, weight

M = 5


def contrastive(model: nn.Module, x: Tensor, share: float) -> Tensor:
    h = F.normalize(model(x))
    return losses_of(h) + share * F.cross_entropy(h @ h.T, torch.arange(len(x)), reduction="none")


def gated(model: nn.Module, x: Tensor, gate: float) -> Tensor:
    h = model.enter(x)
    return losses_of(h + gate * model.inner(h - h.mean(0)))


def headed(model: nn.Module, x: Tensor, head: float) -> Tensor:
    h = model(x)
    return head * losses_of(h - h.mean(0))


def fused(model: nn.Module, x: Tensor, gate: float) -> Tensor:
    h = model.enter(x)
    return losses_of(h + gate * Own.apply(h, model.scale))


def tokens(model: nn.Module, x: Tensor, lengths: list[int]) -> Tensor:
    example = torch.repeat_interleave(torch.arange(M), torch.tensor(lengths))
    return losses_of(torch.zeros(M, 3).double().index_add(0, example, torch.tanh(model(x))))


def in_two_ways(model: nn.Module, x: Tensor, ways: tuple[str, ...]) -> Tensor:
    for way in ways:
        flat = x.flatten(0, 1) if way == "flat" else x
        x = (flat * model.w).view_as(x).sin()
    return losses_of(x)


def linear() -> nn.Module:
    return nn.Linear(6, 3)


UNNOTICED: dict[str, Case] = {
    "a_term_over_pairs_of_examples": (linear, contrastive, (data(M, 6), 0.0), (data(M, 6), 1.0)),
    "unequally_many_tokens": (
        linear,
        tokens,
        (data(20, 6), [4] * M),
        (data(20, 6), [2, 6, 3, 5, 4]),
    ),
}

NOTICED: dict[str, Case] = {
    # A table that is looked up at given rows, first one for each example, then one for each
    # position.
    "as_many_positions_as_examples": (
        lambda: Function(lambda self, x: x, enter=nn.Linear(6, 6), places=nn.Embedding(9, 6)),
        lambda model, x, at: losses_of(model.enter(x) + model.places(at)),
        (data(M, 4, 6), torch.arange(4 * M).view(M, 4) % 9),
        (data(4, 4, 6), torch.arange(4)),
    ),
    "a_mean_over_examples_behind_a_gate": (
        lambda: Function(lambda self, x: x, enter=nn.Linear(6, 6), inner=nn.Linear(6, 6)),
        gated,
        (data(M, 6), 0.0),
        (data(M, 6), 1.0),
    ),
    "an_own_autograd_function_behind_a_gate": (
        lambda: Function(lambda self, x: x, enter=nn.Linear(6, 6), scale=weight(6)),
        fused,
        (data(M, 6), 0.0),
        (data(M, 6), 1.0),
    ),
    "a_mean_over_examples_before_a_head": (linear, headed, (data(M, 6), 0.0), (data(M, 6), 1.0)),
    "a_mean_over_examples_after_losses_that_are_not_finite": (
        linear,
        headed,
        (data(M, 6), math.nan),
        (data(M, 6), 1.0),
    ),
}

RIGHT: dict[str, Case] = {
    "the_first_of_two_calls_is_left_out": (
        raw,
        in_two_ways,
        (data(3, 6, 6), ("flat", "separate")),
        (data(3, 6, 6), ("separate",)),
    ),
}
# From 5 examples with 4 positions each to as many positions as examples, and so on.
SHAPES = {"square": (M, M), "a_single_example": (1, 4), "fewer_examples": (3, 4)}
for name, shape in (SHAPES | {"more_positions": (M, 7)}).items():
    batches = (data(M, 4, 6),), (data(*shape, 6),)
    RIGHT[name] = (linear, lambda model, x: losses_of(model(x)), *batches)


@pytest.mark.parametrize("name", RIGHT)
def test_later_batches_of_other_shapes_give_right_gradients(name):
    later(RIGHT[name], "hooks")


def test_auto_switches_to_another_engine_in_a_later_step(monkeypatch, caplog):
    monkeypatch.setattr("attittud.engine.auto.HOOKS_FROM", 0)
    with caplog.at_level("INFO"):
        later(NOTICED["as_many_positions_as_examples"], "auto")
    assert ["'hooks'" in found.message.split(",")[0] for found in caplog.records] == [True, False]


@pytest.mark.parametrize("name", NOTICED)
def test_wrong_gradients_that_first_show_in_a_later_batch_are_noticed(name, monkeypatch):
    """A parameter whose gradient was zero or not finite had not been compared."""
    with pytest.raises(UnsupportedError, match="do not add up"):
        later(NOTICED[name], "hooks")
    monkeypatch.setattr("attittud.engine.auto.HOOKS_FROM", 0)
    later(NOTICED[name], "auto")


@pytest.mark.parametrize("name", UNNOTICED)
@pytest.mark.xfail(
    raises=AssertionError, strict=True, reason="not noticed by 'hooks' after its first refresh"
)
def test_changes_that_hooks_does_not_notice_later(name):
    later(UNNOTICED[name], "hooks")
