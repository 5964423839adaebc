"""Every formula of the baselines against its definition, written out on explicit gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.helpers.strategies import WEIGHTS, body_gradient, body_update, setting, strategy


def cos(p: Tensor, a: Tensor) -> Tensor:
    return p @ a / (p.norm() * a.norm())


FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "primary_only": lambda p, a: p,
    "pretrain": lambda p, a: a,
    "multitask": lambda p, a: p + a,
    "cosine_gate": lambda p, a: p + a if p @ a >= 0 else p,
    "cosine_weighted": lambda p, a: p + a * max(0.0, float(cos(p, a))),
    # In the first step the running mean is the gradient.
    "bloop": lambda p, a: p + a - (a @ p) / (p @ p) * p,
}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", FORMULAS)
def test_every_baseline_follows_its_formula(name, sign):
    model, losses, p, a = setting(sign)
    strategy(model, name=name).step(losses)
    torch.testing.assert_close(body_update(model), FORMULAS[name](p, a))


def test_replay_is_one_mixture():
    model, losses, _, a = setting()
    strategy(model, name="replay", ratio=0.25).step(losses)
    # A quarter of the mixture: 4 primary and 12 auxiliary examples.
    loss = losses.primary(count=4).mean()
    p = body_gradient(model, loss)
    torch.testing.assert_close(body_update(model), 0.25 * p + 0.75 * a)


def test_bloop_keeps_a_running_mean():
    model, losses, p, a = setting()
    bloop = strategy(model, name="bloop", decay=0.7)
    bloop.step(losses)
    losses.x["primary"] = -losses.x["primary"].flip(0) + 1
    q = body_gradient(model, losses.primary().mean())
    mean = 0.7 * p + 0.3 * q
    model.zero_grad()
    bloop.step(losses)
    torch.testing.assert_close(body_update(model), q + a - (a @ mean) / (mean @ mean) * mean)
    fresh = strategy(model, name="bloop", decay=0.7)
    fresh.load_state_dict(bloop.state_dict())
    assert torch.equal(fresh.state_dict()["mean"], bloop.state_dict()["mean"])


@pytest.mark.parametrize(
    ("name", "aggregator"), [("torchjd_mgda", "MGDA"), ("torchjd_aligned_mtl", "AlignedMTL")]
)
def test_symmetric_baselines_equal_torchjds(name, aggregator):
    aggregation = pytest.importorskip(
        "torchjd.aggregation", reason="the extra torchjd is not installed"
    )
    model, losses, p, _ = setting(-1.0)
    strategy(model, name=name).step(losses)
    tasks = losses.auxiliary()
    rows = [p]
    for key, weight in WEIGHTS.items():
        rows.append(weight * body_gradient(model, tasks[key]))
    expected = getattr(aggregation, aggregator)()(torch.stack(rows))
    torch.testing.assert_close(body_update(model), expected)
