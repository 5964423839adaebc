"""What rests on private names of torch: hooks, and the memory of compiled passes."""

import gc
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn

from attittud import Eta, Guide
from attittud._torch import add_hook, in_cuda_graphs, kept_graph
from tests.helpers.watch import Holding

trees = pytest.importorskip(
    "torch._inductor.cudagraph_trees", reason="a part of torch without promises"
)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_hook_is_as_good_as_torchs_own(earlier):
    x = torch.ones(3, requires_grad=True)
    y, seen = x * 2, []
    if earlier:
        y.register_hook(lambda _: seen.append("earlier"))
    remove = add_hook(y, lambda gradient: seen.append("ours") or 3 * gradient)
    other = y.register_hook(lambda gradient: seen.append(gradient.tolist()))
    y.sum().backward(retain_graph=True)
    assert seen == ["earlier"] * earlier + ["ours", [3.0] * 3] and x.grad.tolist() == [6.0] * 3
    # where a pass ends, hooks see the gradient too
    edge = torch.autograd.graph.get_gradient_edge(y)
    assert torch.autograd.grad(y.sum(), edge, retain_graph=True)[0].tolist() == [3.0] * 3
    remove()
    remove()
    seen.clear()
    y.sum().backward(retain_graph=True)
    assert seen == ["earlier"] * earlier + [[1.0] * 3]
    other.remove()


@pytest.mark.parametrize("engine", ["loop", "hooks"])
def test_a_pass_that_fails_leaves_no_graph_behind(engine):
    body, heads = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 2)])
    guide = Guide(nn.ModuleList([body, heads]), eta=Eta(1, 1, 0), rank=2, engine=engine)
    x, alive = torch.randn(6, 4), []

    def fail(_):
        raise torch.OutOfMemoryError("simulated")

    def losses(head, *, fails=False):
        held = nn.Identity()
        alive.append(weakref.ref(held))
        features = Holding.apply(body(x), held)
        first, second = features.tanh(), features.sin()
        if fails:
            second.register_hook(fail)  # while `first` is waiting in the queue
        return heads[head](first + second).square().mean(1)

    guide.backward(lambda: losses(0), losses(1).mean())
    for refresh in (True, False):
        with pytest.raises(torch.OutOfMemoryError):
            guide.backward(lambda: losses(0, fails=True), losses(1).mean(), refresh=refresh)
    gc.collect()
    assert len(alive) == 6 and not any(held() for held in alive)


def test_a_kept_graph_runs_without_cuda_graphs():
    before = trees.CUDAGraphTreeManager._run

    class Compiled:
        model = staticmethod(lambda inputs: [x + 1 for x in inputs])

    class Manager:
        ids_to_funcs: ClassVar = {7: Compiled}

    with kept_graph():
        assert trees.CUDAGraphTreeManager._run(Manager(), [1, 2], 7) == [2, 3]
    with pytest.raises(ZeroDivisionError), kept_graph():
        raise ZeroDivisionError
    assert trees.CUDAGraphTreeManager._run is before


def test_in_cuda_graphs_works_in_other_threads_and_versions_of_torch(monkeypatch):
    def refuse(error):
        def get_obj(*_):
            raise error

        monkeypatch.setattr(trees, "get_obj", get_obj)

    assert not in_cuda_graphs()
    refuse(AssertionError())  # how torch 2.11 answers a thread that it does not know
    assert not in_cuda_graphs()
    refuse(AttributeError())
    assert in_cuda_graphs()
