"""The engine `hooks`: one backward pass, little memory, and what it refuses by name."""

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attittud import Guide
from attittud.autograd.layout import Layout
from attittud.engine import UnsupportedError, make_engine
from tests.helpers.parity import ETA
from tests.helpers.watch import LiveMemory
from tests.helpers.zoo import problem


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
    """In addition to its result, ΠJ takes at most one vector of the model's size, for any number of examples."""
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


def test_a_refresh_is_one_backward_pass():
    """After the check of the first refresh: one pass for ΠJ, one for the mean gradient."""
    p = problem("mlp")
    guide = Guide(p.model, eta=ETA, rank=3, engine="hooks", refresh_every=1)
    guide.backward(primary=p.losses, auxiliary=p.loss())
    passes = []

    def losses() -> Tensor:
        out = p.losses()
        out.register_hook(lambda _: passes.append(1))
        return out

    guide.backward(primary=losses, auxiliary=p.loss())
    assert len(passes) == 2


def test_hooks_needs_a_callable():
    p = problem("mlp")
    with pytest.raises(UnsupportedError, match=r"(?s)callable.*basis_losses.*engine='loop'"):
        Guide(p.model, eta=ETA, rank=3, engine="hooks").backward(primary=p.losses(), auxiliary=p.loss())


def test_batch_statistics_are_refused_by_name():
    p = problem("cnn_batch_norm")
    with pytest.raises(UnsupportedError, match=r"(?s)'body\.1' \(BatchNorm2d\).*batch_norm='frozen'.*engine='loop'"):
        Guide(p.model, eta=ETA, rank=3, engine="hooks").backward(
            primary=p.losses(), auxiliary=p.loss(), basis_losses=p.losses
        )
