"""Every formula of the baselines against its definition, written out on explicit gradients."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from attittud import Guide, preset, presets
from attittud_lab.config.schema import EtaWeights, StrategyConfig
from attittud_lab.errors import InputError
from attittud_lab.strategies import find, make_strategy, names
from attittud_lab.strategies.guided import SETTINGS, Guided


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.heads = nn.ModuleDict({name: nn.Linear(4, 2) for name in ("primary", "a", "b")})

    def forward(self, x: Tensor, head: str, detach: bool = False) -> Tensor:
        features = torch.tanh(self.body(x))
        return self.heads[head](features.detach() if detach else features)


@dataclass
class Losses:
    """A step's losses on fixed random data; `sign` turns the auxiliary task a against the primary one."""

    model: TwoHeads
    sign: float = 1.0
    auxiliary_examples: int = 12

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.x = {name: torch.randn(6, 5, dtype=torch.float64) for name in ("primary", "a", "b")}
        self.micro = [self]

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        return self.model(self.x["primary"][:count], "primary", detach).square().mean(1)

    def auxiliary(self) -> dict[str, Tensor]:
        return {name: self.sign * self.model(self.x[name], name).square().mean() for name in ("a", "b")}

    def basis(self) -> Tensor:
        return self.primary()


WEIGHTS = {"a": 1.0, "b": 0.5}


def setting(sign: float = 1.0) -> tuple[TwoHeads, Losses, Tensor, Tensor]:
    """A model, its losses, and the oracle: mean primary and weighted auxiliary gradient of the body."""
    torch.manual_seed(0)
    model = TwoHeads().double()
    losses = Losses(model, sign)
    body = list(model.body.parameters())

    def flat(loss: Tensor) -> Tensor:
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, body)])

    tasks = losses.auxiliary()
    return model, losses, flat(losses.primary().mean()), flat(tasks["a"]) + 0.5 * flat(tasks["b"])


def body_update(model: TwoHeads) -> Tensor:
    grads = [parameter.grad for parameter in model.body.parameters()]
    return torch.cat([g.reshape(-1) for g in grads if g is not None])


def cos(p: Tensor, a: Tensor) -> Tensor:
    return p @ a / (p.norm() * a.norm())


FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "primary_only": lambda p, a: p,
    "pretrain": lambda p, a: a,
    "multitask": lambda p, a: p + a,
    "cosine_gate": lambda p, a: p + a if p @ a >= 0 else p,
    "cosine_weighted": lambda p, a: p + a * max(0.0, float(cos(p, a))),
    "bloop": lambda p, a: p + a - (a @ p) / (p @ p) * p,  # in the first step the running mean is the gradient
}


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str, sign: float) -> None:
    model, losses, p, a = setting(sign)
    make_strategy(StrategyConfig(name=name), model, weights=WEIGHTS, seed=0).step(losses)
    torch.testing.assert_close(body_update(model), FORMULAS[name](p, a))


def test_replay_is_one_mixture() -> None:
    model, losses, _, a = setting()
    make_strategy(StrategyConfig(name="replay", ratio=0.25), model, weights=WEIGHTS, seed=0).step(losses)
    # A quarter of the mixture: 4 primary examples beside 12 auxiliary ones.
    loss = losses.primary(count=4).mean()
    p = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.body.parameters()))])
    torch.testing.assert_close(body_update(model), 0.25 * p + 0.75 * a)


def test_bloop_remembers() -> None:
    model, losses, p, a = setting()
    strategy = make_strategy(StrategyConfig(name="bloop", decay=0.7), model, weights=WEIGHTS, seed=0)
    strategy.step(losses)
    losses.x["primary"] = -losses.x["primary"].flip(0) + 1
    q = torch.cat([g.reshape(-1) for g in torch.autograd.grad(losses.primary().mean(), list(model.body.parameters()))])
    mean = 0.7 * p + 0.3 * q
    model.zero_grad()
    strategy.step(losses)
    torch.testing.assert_close(body_update(model), q + a - (a @ mean) / (mean @ mean) * mean)
    fresh = make_strategy(StrategyConfig(name="bloop", decay=0.7), model, weights=WEIGHTS, seed=0)
    fresh.load_state_dict(strategy.state_dict())
    assert torch.equal(fresh.state_dict()["mean"], strategy.state_dict()["mean"])


@pytest.mark.parametrize("name", ["multitask", "pretrain"])
def test_heads_and_sums_are_those_of_a_guide(name: str) -> None:
    model, losses, _, _ = setting()
    make_strategy(StrategyConfig(name=name), model, weights=WEIGHTS, seed=0).step(losses)
    mine = {key: parameter.grad.clone() for key, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    guide = Guide(model, **preset(name), rank=2, auxiliary_weight=WEIGHTS)
    guide.backward(losses.primary(), losses.auxiliary())
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(mine[key], parameter.grad)


def test_settings_reach_the_guide() -> None:
    model, _, _, _ = setting()
    config = StrategyConfig(name="flip", primary_weight=0.25, basis="svd", rank=3, refresh_every=7, include_mean=True)
    strategy = make_strategy(config, model, weights={"a": 2.0, "b": 3.0}, seed=5)
    assert isinstance(strategy, Guided)
    guide = strategy.guide
    assert (guide.primary_weight, guide.basis.name, guide.rank, guide.refresh_every) == (0.25, "svd", 3, 7)
    assert guide.include_mean and guide.seed == 5 and guide.auxiliary_weight == {"a": 2.0, "b": 3.0}
    own = StrategyConfig(name="custom", eta=EtaWeights(0.5, 1.0, -2.0), auxiliary_weight=0.1)
    strategy = make_strategy(own, model, weights={"a": 2.0}, seed=0)
    assert isinstance(strategy, Guided) and strategy.guide.auxiliary_weight == {"a": 0.2}


@pytest.mark.parametrize("engine", ["hooks", "implicit"])
@pytest.mark.parametrize("basis_batch", [None, 6])
def test_engines_that_see_the_forward_pass(engine: str, basis_batch: int | None) -> None:
    """The update is that of the engine which needs nothing but the losses, whether or not the basis has its own batch."""
    updates = []
    for name in (engine, "loop"):
        model, losses, _, _ = setting(-1.0)
        config = StrategyConfig(
            name="flip", basis="exact", rank=3, refresh_every=1, engine=name, basis_batch=basis_batch
        )
        make_strategy(config, model, weights=WEIGHTS, seed=0).step(losses)
        updates.append(body_update(model))
    torch.testing.assert_close(*updates)


def test_an_engine_that_cannot_take_the_model_is_the_users_choice() -> None:
    torch.manual_seed(0)
    model, losses, _, _ = setting()
    losses.primary = lambda **_: model(losses.x["primary"], "primary").square().mean(1).cumsum(0)
    strategy = make_strategy(StrategyConfig(name="flip", engine="hooks"), model, weights=WEIGHTS, seed=0)
    with pytest.raises(InputError, match=r"strategy\.engine=hooks cannot be used"):
        strategy.step(losses)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_pcgrad_is_one_sided_and_never_stale(sign: float) -> None:
    model, losses, _, _ = setting(sign)
    strategy = make_strategy(StrategyConfig(name="pcgrad"), model, weights=WEIGHTS, seed=0)
    strategy.step(losses)
    losses.x["primary"] = losses.x["primary"] * 2 - 1  # another primary gradient in the second step
    model.zero_grad()
    strategy.step(losses)
    body, tasks = list(model.body.parameters()), losses.auxiliary()
    p = torch.cat([g.reshape(-1) for g in torch.autograd.grad(losses.primary().mean(), body)])
    expected = p
    for name, weight in WEIGHTS.items():
        a = torch.cat([g.reshape(-1) for g in torch.autograd.grad(tasks[name], body)])
        expected = expected + weight * (a if a @ p >= 0 else a - (a @ p) / (p @ p) * p)
    torch.testing.assert_close(body_update(model), expected)


@pytest.mark.parametrize(("name", "aggregator"), [("torchjd_mgda", "MGDA"), ("torchjd_aligned_mtl", "AlignedMTL")])
def test_symmetric_baselines_are_torchjds(name: str, aggregator: str) -> None:
    aggregation = pytest.importorskip("torchjd.aggregation", reason="the extra torchjd is not installed")
    model, losses, p, _ = setting(-1.0)
    make_strategy(StrategyConfig(name=name), model, weights=WEIGHTS, seed=0).step(losses)
    tasks, body = losses.auxiliary(), list(model.body.parameters())
    rows = [p]
    for key, weight in WEIGHTS.items():
        rows.append(torch.cat([weight * g.reshape(-1) for g in torch.autograd.grad(tasks[key], body)]))
    torch.testing.assert_close(body_update(model), getattr(aggregation, aggregator)()(torch.stack(rows)))


def test_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"Did you mean 'drop_harmful'"):
        make_strategy(StrategyConfig(name="drop_harmfull"), nn.Linear(1, 1), weights={}, seed=0)
    with pytest.raises(InputError, match="needs its three weights"):
        make_strategy(StrategyConfig(name="custom"), nn.Linear(1, 1), weights={}, seed=0)
    assert {"primary_only", "pretrain", "multitask", "replay", "pcgrad", "bloop", "torchjd_upgrad"} <= names().keys()


def test_what_a_preset_fixes_is_not_inherited() -> None:
    """A strategy of a comparison takes the rest from the section `strategy`."""
    for name in presets():
        inherited = find(name).inherits
        assert not (preset(name).keys() & set(inherited)), name
    assert find("flip").inherits == find("auto").inherits == SETTINGS and find("multitask").inherits == ()


def test_what_strategies_declare() -> None:
    declared = {
        name: make_strategy(StrategyConfig(name=name), nn.Linear(4, 4), weights={"a": 1.0}, seed=0)
        for name in ("auto", "flip", "multitask", "primary_only", "pretrain_as_released")
    }
    assert {name for name, found in declared.items() if found.uses_held_out} == {"auto"}
    assert {name for name, found in declared.items() if not found.needs_auxiliary} == {"primary_only"}
    assert {name for name, found in declared.items() if not found.trains_head} == {"pretrain_as_released"}
    assert {name for name, found in declared.items() if found.needs_shared} == {"auto", "flip"}
    fixed = {"primary_only", "pretrain", "pretrain_as_released", "replay"}
    assert {name for name in names() if not find(name).tunes_primary_weight} == fixed
