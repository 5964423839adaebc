"""Every formula of the baselines against its definition, written out on explicit gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attittud_lab.config.schema import StrategyConfig
from attittud_lab.strategies import make_strategy
from tests.helpers.strategies import body_update, setting

WEIGHTS = {"a": 1.0, "b": 0.5}


def cos(p: Tensor, a: Tensor) -> Tensor:
    return p @ a / (p.norm() * a.norm())


FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "primary_only": lambda p, a: p,
    "pretrain": lambda p, a: a,
    "multitask": lambda p, a: p + a,
    "cosine_gate": lambda p, a: p + a if p @ a >= 0 else p,
    "cosine_weighted": lambda p, a: p + a * max(0.0, float(cos(p, a))),
    "bloop": lambda p, a: (
        p + a - (a @ p) / (p @ p) * p
    ),  # in the first step the running mean is the gradient
}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", FORMULAS)
def test_every_baseline_follows_its_formula(name, sign):
    model, losses, p, a = setting(sign)
    make_strategy(StrategyConfig(name=name), model, weights=WEIGHTS, seed=0).step(losses)
    torch.testing.assert_close(body_update(model), FORMULAS[name](p, a))


def test_replay_is_one_mixture():
    model, losses, _, a = setting()
    make_strategy(StrategyConfig(name="replay", ratio=0.25), model, weights=WEIGHTS, seed=0).step(
        losses
    )
    # A quarter of the mixture: 4 primary and 12 auxiliary examples.
    loss = losses.primary(count=4).mean()
    p = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.body.parameters()))])
    torch.testing.assert_close(body_update(model), 0.25 * p + 0.75 * a)


def test_bloop_keeps_a_running_mean():
    model, losses, p, a = setting()
    strategy = make_strategy(
        StrategyConfig(name="bloop", decay=0.7), model, weights=WEIGHTS, seed=0
    )
    strategy.step(losses)
    losses.x["primary"] = -losses.x["primary"].flip(0) + 1
    q = torch.cat(
        [
            g.reshape(-1)
            for g in torch.autograd.grad(losses.primary().mean(), list(model.body.parameters()))
        ]
    )
    mean = 0.7 * p + 0.3 * q
    model.zero_grad()
    strategy.step(losses)
    torch.testing.assert_close(body_update(model), q + a - (a @ mean) / (mean @ mean) * mean)
    fresh = make_strategy(StrategyConfig(name="bloop", decay=0.7), model, weights=WEIGHTS, seed=0)
    fresh.load_state_dict(strategy.state_dict())
    assert torch.equal(fresh.state_dict()["mean"], strategy.state_dict()["mean"])


@pytest.mark.parametrize(
    ("name", "aggregator"), [("torchjd_mgda", "MGDA"), ("torchjd_aligned_mtl", "AlignedMTL")]
)
def test_symmetric_baselines_equal_torchjds(name, aggregator):
    aggregation = pytest.importorskip(
        "torchjd.aggregation", reason="the extra torchjd is not installed"
    )
    model, losses, p, _ = setting(-1.0)
    make_strategy(StrategyConfig(name=name), model, weights=WEIGHTS, seed=0).step(losses)
    tasks, body = losses.auxiliary(), list(model.body.parameters())
    rows = [p]
    for key, weight in WEIGHTS.items():
        rows.append(
            torch.cat([weight * g.reshape(-1) for g in torch.autograd.grad(tasks[key], body)])
        )
    torch.testing.assert_close(
        body_update(model), getattr(aggregation, aggregator)()(torch.stack(rows))
    )
