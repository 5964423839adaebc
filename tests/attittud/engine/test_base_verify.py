"""`hooks` compares itself with an ordinary gradient: errors that are caught, cases that pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attittud.autograd.layout import Layout
from attittud.engine import UnsupportedError, hooks, make_engine
from attittud.engine.base import probe, verify
from attittud.engine.rules import RULES
from tests.helpers.comparing import compare, reached
from tests.helpers.layers import Function, M, Own, layer, weight
from tests.helpers.oracle import trainable


def test_the_check_catches_a_wrong_rule(monkeypatch):
    rule = RULES[F.layer_norm]

    def wrong(use):
        for parameter, piece in rule.gradients(use):
            piece.gradients = piece.gradients * (1.01 if parameter is use["bias"] else 1)
            yield parameter, piece

    monkeypatch.setitem(RULES, F.layer_norm, rule._replace(gradients=wrong))
    given = layer("layer_norm")
    with pytest.raises(UnsupportedError, match=r"gradient of 1\.bias \(off by 0\.01 of"):
        compare("hooks", given.model, given.losses)


def test_the_check_catches_gradients_given_to_the_wrong_example(monkeypatch):
    """Their plain sum is right, so a comparison with equal weights would miss it."""
    rule = RULES[F.linear]

    def wrong(use):
        for parameter, piece in rule.gradients(use):
            if parameter is use["bias"]:
                piece.gradients = piece.gradients.roll(1, 0)
            yield parameter, piece

    monkeypatch.setitem(RULES, F.linear, rule._replace(gradients=wrong))
    given = layer("linear")
    with pytest.raises(UnsupportedError, match=r"gradient of 0\.bias .*2\.bias"):
        compare("hooks", given.model, given.losses)


def test_a_forward_pass_shared_by_both_tasks_is_noticed_in_any_step():
    """Twice as many examples as losses look like two positions of each."""
    given, engine = layer("linear"), make_engine("hooks")
    layout, few = Layout(given.model.named_parameters()), given.x
    for x, refused in ((few, False), (torch.cat([few, few.flip(0)]), True)):
        given.x = x
        with engine.watch(given.model):
            losses = given.losses()[: len(few)]
            if refused:
                with pytest.raises(UnsupportedError, match="examples have no loss"):
                    engine.jacobian(losses, layout)
            else:
                engine.jacobian(losses, layout)


LATER = {
    "another_parameter": (lambda model, h: Own.apply(h, model.w), "gradient of w "),
    "another_use": (lambda model, h: (h - h.mean(0)) @ model.a.weight, "gradient of a.weight "),
}


@pytest.mark.parametrize("what", LATER)
def test_functions_used_only_after_the_first_refresh_are_checked_too(what):
    later, culprit = LATER[what]
    model = Function(lambda self, x: self.a(x), a=nn.Linear(6, 4), w=weight(4)).double()
    engine, x = make_engine("hooks"), torch.randn(M, 6).double()

    def refresh(function) -> None:
        losses = function(model(x)).square().sum(1)
        engine.jacobian(
            losses, Layout((name, trainable(model)[name]) for name in reached(losses, model))
        )

    for _ in range(2):
        with engine.watch(model):
            refresh(lambda h: h)
    with pytest.raises(UnsupportedError, match=culprit), engine.watch(model):
        refresh(lambda h: later(model, h))


def test_gradients_that_stay_zero_are_compared_less_and_less_often(monkeypatch):
    """A comparison waits for the device: 1, 2, 4, 8, ... refreshes after the first."""
    calls, compared = [], []
    monkeypatch.setattr(hooks, "verify", lambda *a, **o: calls.append(1) or verify(*a, **o))
    engine, model, x = make_engine("hooks"), nn.Linear(6, 4), torch.randn(M, 6)
    for refresh in range(18):
        with engine.watch(model):
            losses = 0.0 * model(x).square().sum(1)
            engine.jacobian(losses, Layout(model.named_parameters()))
        if calls:
            compared.append(refresh)
            calls.clear()
    assert compared == [0, 1, 2, 4, 8, 16]


def test_gradients_that_are_zero_by_symmetry_do_not_disturb_the_check():
    """The key bias of attention shifts all scores alike."""
    engine, x = make_engine("hooks"), torch.randn(M, 4, 6)
    parts = {name: nn.Linear(6, 6) for name in ("query", "key", "value")}

    def attend(self, x):
        return F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))

    model = Function(attend, **parts)
    with engine.watch(model):
        engine.jacobian(model(x).square().mean((1, 2)), Layout(model.named_parameters()))


def test_gradients_that_cancel_in_half_precision_do_not_disturb_the_check():
    """Two passes must not round differently: the sum of gradients that cancel is rounding."""
    model, engine = nn.Linear(4, 1), make_engine("hooks")
    x, signs = 0.1 * torch.randn(4, 3, 4), torch.tensor([1.0, -0.75, -0.25])
    with engine.watch(model):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        engine.jacobian((out.float()[..., 0] * signs).sum(1), Layout(model.named_parameters()))


def test_the_checks_weights_differ_between_neighbours_and_sum_to_powers_of_two():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        weights = probe(torch.ones(300, dtype=dtype)).double()
        total = weights.sum(0)
        assert (torch.frexp(total).mantissa == 0.5).all()
        assert (total[1:] != total[:-1]).all() and len(set(total[:4].tolist())) == 4
        assert (weights > 0).all() and not (weights[0] == weights[1]).all()
