"""The engine `hooks`: one backward pass, little memory, and what it refuses by name."""

import copy

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.engine import UnsupportedError, make_engine
from tests.helpers.oracle import jacobian
from tests.helpers.watch import LiveMemory
from tests.helpers.zoo import problem

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


def test_hooks_let_checkpointing_save_its_memory():
    """What `hooks` needs of the forward pass is recomputed too, not held."""

    def held(checkpointed: bool) -> int:
        layers = [nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(6)]
        model = nn.ModuleList(layers)
        x = torch.randn(64, 8)

        def losses() -> Tensor:
            h = x
            for part in model:
                h = checkpoint(part, h, use_reentrant=False) if checkpointed else part(h)
            return h.square().mean(1)

        with make_engine("hooks").watch(model), LiveMemory() as watch:
            kept = losses()
            assert kept.requires_grad
            return watch.live

    assert held(True) < 0.4 * held(False)


def test_hooks_form_no_matrix_of_all_gradients():
    """Beside its result, ΠJ takes at most one vector of the model's size, whatever m is."""
    width, depth, k = 48, 6, 5
    for m in (24, 96):
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
        x = torch.randn(m, 3, width)  # sequences: gradients have to be formed
        layout = Layout(model.named_parameters())
        engine = make_engine("hooks")
        for _ in range(2):  # the first refresh, with its check
            with engine.watch(model), LiveMemory() as watch:
                losses = model(x).square().mean((1, 2))
                activations = watch.live
                jacobian = engine.jacobian(losses, layout)
                watch.peak = 0
                jacobian.left(torch.randn(k, m))
        vectors = (watch.peak - activations) / (4 * layout.size)
        passing = 5 * x.numel() / layout.size  # gradients of activations on their way
        assert k < vectors < k + 1 + passing < m


@pytest.mark.parametrize("engine", ["loop", "hooks", "auto"])
def test_a_callable_runs_once_in_every_step(engine):
    p = problem("mlp")
    calls = []
    p.model.body.register_forward_hook(lambda *_: calls.append(1))
    guide = Guide(p.model, eta=ETA, rank=3, engine=engine, refresh_every=2)
    for _ in range(4):
        auxiliary = p.loss()
        calls.clear()
        guide.backward(primary=p.losses, auxiliary=auxiliary)
        assert len(calls) == 1


@pytest.mark.parametrize("later", ["parallel", "chained", "swapped", "one_left_out"])
@pytest.mark.parametrize("first", ["parallel", "one_left_out"])
def test_the_same_calls_may_depend_on_each_other_in_another_way(first, later):
    """Only the graph tells that a backward pass does not reach all calls where it ended before."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4)}
    ).double()
    x = torch.randn(6, 3, 4).double()
    layout = Layout(model.named_parameters())
    engine = make_engine("hooks")

    def losses(way: str) -> Tensor:
        start = model["c"](x)
        a = model["a"](start if way != "swapped" else x)
        b = model["b"](a if way == "chained" else start if way != "swapped" else x)
        total = {
            "parallel": a * b,
            "chained": b,
            "swapped": a * b + start,
            "one_left_out": a + start,
        }[way]
        return total.tanh().sum((1, 2))

    for way in (first, first, later, first):
        want = make_engine("loop").jacobian(losses(way), layout).rows()
        weights = torch.randn(3, 6).double()
        with engine.watch(model):
            got = engine.jacobian(losses(way), layout).left(weights)
        assert torch.allclose(got, weights @ want)


def test_what_is_known_about_calls_ends_with_the_parameters():
    """Other parameters may have the same names and shapes, or fewer of them take part."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    x, engine = torch.randn(6, 3, 4).double(), make_engine("hooks")

    def check(model: nn.Module) -> None:
        layout = Layout([(name, p) for name, p in model.named_parameters() if p.requires_grad])
        for _ in range(2):
            losses = model(x).square().sum((1, 2))
            want = jacobian(losses, model, layout.names)
            with engine.watch(model):
                got = engine.jacobian(model(x).square().sum((1, 2)), layout).left(
                    torch.eye(6).double()
                )
            assert torch.allclose(got, want)

    check(model)
    model[0].weight.requires_grad_(False)
    check(model)
    model.load_state_dict({name: 2 * p for name, p in model.state_dict().items()}, assign=True)
    check(model)
    engine = copy.deepcopy(engine)
    check(copy.deepcopy(model))


def test_hooks_needs_a_callable():
    p = problem("mlp")
    with pytest.raises(UnsupportedError, match=r"(?s)callable.*basis_losses.*engine='loop'"):
        Guide(p.model, eta=ETA, rank=3, engine="hooks").backward(
            primary=p.losses(), auxiliary=p.loss()
        )
