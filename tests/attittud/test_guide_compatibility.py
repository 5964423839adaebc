"""Guides together with what else people use: compiled models, checkpointing, mixed precision, loss
scaling, memory formats.
"""

import copy

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from attittud import Eta, Guide
from tests.helpers.oracle import error
from tests.helpers.zoo import problem

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


class Net(nn.Module):
    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.enter, self.inner, self.norm = nn.Linear(6, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.leave = nn.Linear(8, 3)
        self.checkpointed = checkpointed

    def block(self, h: Tensor) -> Tensor:
        return self.norm(torch.relu(self.inner(h)))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        h = checkpoint(self.block, h, use_reentrant=False) if self.checkpointed else self.block(h)
        return self.leave(h)


def train(model: nn.Module, engine: str, steps: int = 4, **options) -> dict[str, Tensor]:
    """A few steps with refreshes among them; the gradients of the last."""
    generator = torch.Generator().manual_seed(1)
    x, xa = torch.randn(7, 6, generator=generator), torch.randn(9, 6, generator=generator)
    y = torch.randint(3, (7,), generator=generator)
    dtype = next(model.parameters()).dtype
    x, xa = x.to(dtype), xa.to(dtype)
    guide = Guide(model, eta=ETA, rank=3, engine=engine, refresh_every=2, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        guide.backward(
            primary=lambda: F.cross_entropy(model(x), y, reduction="none"),
            auxiliary=model(xa).square().mean(),
        )
        optimizer.step()
    return {name.removeprefix("_orig_mod."): p.grad for name, p in model.named_parameters()}


@pytest.fixture
def net() -> Net:
    return Net().double()


@pytest.mark.parametrize("engine", ["loop", "hooks"])
def test_compiled_models_keep_their_result_and_their_graphs(net, engine):
    """One graph for each input shape, no breaks, and no further compilation when refreshes come and
    go.
    """
    want = train(copy.deepcopy(net), "loop")
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=False)
    assert error(train(compiled, engine), want) < 1e-11
    assert sum(counters["graph_break"].values()) == 0
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("engine", ["loop", "hooks"])
def test_activation_checkpointing_changes_no_update(net, engine):
    want = train(copy.deepcopy(net), "loop")
    net.checkpointed = True
    assert error(train(net, engine), want) < 1e-11


@pytest.mark.parametrize("engine", ["loop", "hooks"])
def test_a_loss_scale_changes_no_update(engine):
    """Both losses scaled, gradients unscaled: the update of a run without scaler."""
    grads = []
    for scale in (1.0, 2.0**16):
        p = problem("mlp")
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        optimizer = torch.optim.SGD(p.model.parameters(), lr=0.1)
        guide = Guide(p.model, eta=ETA, rank=3, engine=engine)
        guide.backward(primary=lambda: scaler.scale(p.losses()), auxiliary=scaler.scale(p.loss()))  # noqa: B023 - called at once
        scaler.unscale_(optimizer)
        grads.append(p.grads())
        scaler.step(optimizer)
        scaler.update()
    assert error(grads[1], grads[0]) < 1e-5


@pytest.mark.parametrize("engine", ["loop", "hooks"])
def test_overflow_skips_the_optimizer_step(engine):
    p = problem("mlp")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    optimizer = torch.optim.SGD(p.model.parameters(), lr=0.1)
    before = {name: x.detach().clone() for name, x in p.model.named_parameters()}
    guide = Guide(p.model, eta=ETA, rank=3, engine=engine)
    report = guide.backward(
        primary=lambda: 2.0**20 * scaler.scale(p.losses()),
        auxiliary=2.0**20 * scaler.scale(p.loss()),
    )
    scaler.step(optimizer)
    assert all(torch.equal(before[name], x) for name, x in p.model.named_parameters())
    with pytest.warns(UserWarning, match="NaN or Inf"):
        assert report.to_dict()["skipped_refreshes"] == 1
