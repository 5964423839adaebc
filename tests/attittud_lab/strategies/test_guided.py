"""Strategies that are a guide: their settings reach it, and presets are what they say."""

import pytest
import torch

from attittud import Guide, preset, presets
from attittud_lab.config.load import loads
from attittud_lab.config.schema import EtaWeights, StrategyConfig
from attittud_lab.errors import InputError
from attittud_lab.strategies import find, make_strategy
from attittud_lab.strategies.guided import SETTINGS, Guided
from attittud_lab.training.train import run
from tests.helpers.commands import JOB
from tests.helpers.strategies import WEIGHTS, body_gradient, body_update, setting, strategy


@pytest.mark.parametrize("name", ["multitask", "pretrain"])
def test_heads_and_sums_equal_a_guides(name):
    model, losses, _, _ = setting()
    strategy(model, name=name).step(losses)
    mine = {
        key: parameter.grad.clone()
        for key, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad()
    guide = Guide(model, **preset(name), rank=2, auxiliary_weight=WEIGHTS)
    guide.backward(losses.primary(), losses.auxiliary())
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(mine[key], parameter.grad)


def test_settings_reach_the_guide():
    model, _, _, _ = setting()
    config = StrategyConfig(
        name="flip", primary_weight=0.25, basis="svd", rank=3, refresh_every=7, include_mean=True
    )
    guided = make_strategy(config, model, weights={"a": 2.0, "b": 3.0}, seed=5)
    assert isinstance(guided, Guided)
    guide = guided.guide
    expected = (0.25, "svd", 3, 7)
    assert (guide.primary_weight, guide.basis.name, guide.rank, guide.refresh_every) == expected
    assert guide.include_mean and guide.seed == 5 and guide.auxiliary_weight == {"a": 2.0, "b": 3.0}
    own = StrategyConfig(name="custom", eta=EtaWeights(0.5, 1.0, -2.0), auxiliary_weight=0.1)
    guided = make_strategy(own, model, weights={"a": 2.0}, seed=0)
    assert isinstance(guided, Guided) and guided.guide.auxiliary_weight == {"a": 0.2}


def test_engines_that_need_it_see_the_forward_pass():
    """The update is that of an engine that needs only losses."""
    updates = []
    for name in ("hooks", "loop"):
        model, losses, _, _ = setting(-1.0)
        settings = {"basis": "exact", "rank": 3, "refresh_every": 1, "basis_batch": 6}
        strategy(model, name="flip", engine=name, **settings).step(losses)
        updates.append(body_update(model))
    torch.testing.assert_close(*updates)


def test_pcgrad_is_one_sided_and_never_stale():
    model, losses, _, _ = setting(-1.0)
    pcgrad = strategy(model, name="pcgrad")
    pcgrad.step(losses)
    losses.x["primary"] = losses.x["primary"] * 2 - 1  # another primary gradient in the second step
    model.zero_grad()
    pcgrad.step(losses)
    tasks = losses.auxiliary()
    p = body_gradient(model, losses.primary().mean())
    expected = p
    for name, weight in WEIGHTS.items():
        a = body_gradient(model, tasks[name])
        expected = expected + weight * (a if a @ p >= 0 else a - (a @ p) / (p @ p) * p)
    torch.testing.assert_close(body_update(model), expected)


def test_what_a_preset_fixes_is_not_inherited():
    """A strategy of a comparison takes the rest from the section `strategy`."""
    for name in presets():
        inherited = find(name).inherits
        assert not (preset(name).keys() & set(inherited)), name
    assert find("flip").inherits == find("auto").inherits == SETTINGS
    assert find("multitask").inherits == ()


def test_auto_refuses_weights_from_the_configuration(tmp_path):
    with pytest.raises(InputError, match="strategy auto finds the weights itself"):
        run(loads(JOB, ["strategy.eta={neutral: 1}"]), run_dir=tmp_path)
