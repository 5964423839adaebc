"""Compiled models: a refresh walks their graph several times."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional as F

from attittud import Eta, Guide
from attittud.engine import base


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


@pytest.fixture
def donated():
    from torch._functorch import config

    before = config.donated_buffer
    config.donated_buffer = True
    yield config
    config.donated_buffer = before
    torch.compiler.reset()


@pytest.mark.parametrize("engine", ["loop", "hooks"])
@pytest.mark.parametrize("in_place", [False, True], ids=["torch.compile", "model.compile"])
def test_steps_and_refreshes_equal_eager_and_compile_nothing_more(donated, in_place, engine):
    """One graph for each input shape, and no breaks."""
    torch.manual_seed(0)
    plain = Model().double()
    twin = copy.deepcopy(plain)
    torch._dynamo.reset()
    counters.clear()
    options = {"backend": "aot_eager", "fullgraph": True, "dynamic": False}
    if in_place:
        twin.compile(**options)
        compiled = twin
    else:
        compiled = torch.compile(twin, **options)
    guides = [Guide(plain, eta=Eta(1, 0.5, -1), rank=3, engine="loop")]
    guides.append(Guide(compiled, eta=Eta(1, 0.5, -1), rank=3, engine=engine))
    assert not donated.donated_buffer
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randint(3, (8,))
    for refresh in (True, False, True, False):
        for guide in guides:
            model = guide.model
            guide.backward(
                lambda model=model: F.cross_entropy(model(x), y, reduction="none"),
                model(x[:5]).square().mean(),
                refresh=refresh,
            )
    for a, b in zip(plain.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert sum(counters["graph_break"].values()) == 0
    assert counters["stats"]["unique_graphs"] == 2


def test_a_model_that_is_not_compiled_does_not_change_torchs_setting(donated):
    Guide(nn.Linear(2, 2), eta=Eta(1, 1, 1))
    assert donated.donated_buffer


def test_donated_buffers_are_reported_and_switched_off(donated, monkeypatch):
    """A function that was compiled elsewhere: the guide sees it when torch refuses."""
    model = nn.Linear(6, 3)
    guide = Guide(model, eta=Eta(1, 1, 0), rank=3, engine="loop")
    x, run_backward = torch.randn(8, 6), base.run_backward

    def refuses(losses, weights, retain_graph, *args, **kwargs):
        if donated.donated_buffer and retain_graph:
            raise RuntimeError(
                "This backward function was compiled with non-empty donated buffers which requires ..."
            )
        return run_backward(losses, weights, retain_graph, *args, **kwargs)

    monkeypatch.setattr(base, "run_backward", refuses)
    with pytest.raises(RuntimeError, match="onated buffers"):
        guide.backward(primary=model(x).square().mean(1), auxiliary=model(x).abs().mean())
    guide.backward(primary=model(x).square().mean(1), auxiliary=model(x).abs().mean())
    assert model.weight.grad is not None


@pytest.mark.usefixtures("donated")
@pytest.mark.parametrize("basis", ["svd", "mean"])
def test_only_the_last_backward_pass_of_a_loss_runs_in_cuda_graphs(basis):
    """All earlier backward passes, including the one for J·v, keep what the forward pass saved."""
    trees = pytest.importorskip(
        "torch._inductor.cudagraph_trees", reason="a part of torch without promises"
    )
    before, in_graphs = trees.CUDAGraphTreeManager._run, []

    def backward(module, _):
        def run(*inputs):
            in_graphs.append(trees.CUDAGraphTreeManager._run is before)
            return module(*inputs)

        return make_boxed_func(run)

    backend = aot_autograd(
        fw_compiler=lambda module, _: make_boxed_func(module), bw_compiler=backward
    )
    model = torch.compile(Model(), backend=backend, fullgraph=True)
    guide = Guide(model, eta=Eta(1, 0.5, -1), rank=3, engine="loop", basis=basis)
    x = torch.linspace(-1, 1, 96).sin().reshape(16, 6)
    for refresh in (True, False, True):
        in_graphs.clear()
        guide.backward(
            primary=model(x).square().mean(1), auxiliary=model(x).mean(), refresh=refresh
        )
        assert sum(in_graphs) == 2
        assert (len(in_graphs) > 2) == (refresh and basis != "mean")
