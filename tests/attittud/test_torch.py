"""What rests on private names of torch: hooks, and the memory of compiled passes whose backward
pass is still to come.
"""

import copy
import gc
import weakref
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attittud import Eta, Guide
from attittud._torch import add_hook, in_cuda_graphs, kept_graph
from tests.helpers.watch import Holding


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
    edge = torch.autograd.graph.get_gradient_edge(
        y
    )  # where a pass ends, hooks see the gradient too
    assert torch.autograd.grad(y.sum(), edge, retain_graph=True)[0].tolist() == [3.0] * 3
    remove()
    remove()
    seen.clear()
    y.sum().backward(retain_graph=True)
    assert seen == ["earlier"] * earlier + [[1.0] * 3]
    other.remove()


class Passes:
    """A model that notes for each backward pass whether torch may hand it to another thread."""

    def __init__(self, engine):
        self.body, self.heads = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 2)])
        model = nn.ModuleList([self.body, self.heads])
        self.guide = Guide(model, eta="auto", rank=2, engine=engine, judge_every=1)
        self.x, self.seen = torch.randn(6, 4), []

    def losses(self, head):
        features = self.body(self.x).tanh()
        features.register_hook(lambda _: self.seen.append(torch._C._is_multithreading_enabled()))
        return self.heads[head](features).square().mean(1)

    def step(self, **options):
        def losses():
            return self.losses(0)

        self.seen.clear()
        self.guide.backward(losses, self.losses(1).mean(), judge=losses, **options)


@pytest.mark.parametrize("engine", ["loop", "batched", "hooks"])
def test_backward_passes_run_in_the_thread_that_calls_the_guide(engine):
    run = Passes(engine)
    for refresh in (
        True,
        True,
        False,
    ):  # the first refresh checks the engine by passes of torch's own
        run.step(refresh=refresh)
    assert run.seen == [False, False, False]  # primary, judges, auxiliary
    run.step(refresh=True)
    assert len(run.seen) >= 3 and not any(run.seen)
    assert torch._C._is_multithreading_enabled()


def test_the_setting_for_threads_is_the_users_again_after_an_error():
    run = Passes("loop")
    run.step()
    losses = run.losses(0)
    losses.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.guide.backward(losses, run.losses(1).mean())
    assert torch._C._is_multithreading_enabled()
    with torch.autograd.set_multithreading_enabled(False):
        run.step()
        assert not torch._C._is_multithreading_enabled()


@pytest.mark.parametrize("engine", ["loop", "batched", "hooks"])
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
    trees = pytest.importorskip(
        "torch._inductor.cudagraph_trees", reason="a part of torch without promises"
    )
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


trees = pytest.importorskip(
    "torch._inductor.cudagraph_trees", reason="a part of torch without promises"
)


class Recording(trees.CUDAGraphNode):
    """The outputs of a recorded function at their fixed addresses. torch's own code says whether
    they are alive.
    """

    def __init__(self, outputs):
        self.outputs_weakrefs = [None] * len(outputs)
        self.path_weakrefs = [self.outputs_weakrefs]
        self.live_indices_after_graph = [(0, i) for i in range(len(outputs))]
        self.outputs_metadata = [{"like": x} for x in outputs]
        self.output_storage_alias = [trees.UnaliasedStorage] * len(outputs)
        self.unaliased_in_all_paths = [True] * len(outputs)
        self.cached_tensor_outputs = []
        self._initialize_cached_tensors()

    def create_storage(self, metadata):
        return None

    def _reconstruct_from_tensor_metadata(self, metadata, storage=None):
        x = metadata.pop("like")
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)


class Trees:
    """A backend with fixed addresses for results of functions: the first call warms up, the second
    one records.

    The first forward pass after a backward pass starts over and may overwrite all that was returned
    before. Where a function is recorded after others were repeated whose backward pass has not
    come, and torch says that all they returned is dead, it is given their memory.
    """

    def __init__(self):
        self.repeated, self.returned, self.pending, self.recorded = [], [], False, 0
        self.backend = aot_autograd(fw_compiler=self.forward, bw_compiler=self.backward)

    def forward(self, module, _):
        return self.compiled(module, forward=True)

    def backward(self, module, _):
        return self.compiled(module, forward=False)

    def overwrite(self):
        for place in (
            *self.returned,
            *(place for each in self.repeated for place in each.cached_tensor_outputs),
        ):
            place.data.fill_(torch.nan)
        self.repeated, self.returned = [], []

    def compiled(self, module, *, forward):
        calls, recording = 0, None

        def run(*inputs):
            nonlocal calls, recording
            calls += 1
            if forward and not self.pending:
                self.overwrite()
            self.pending = forward
            if calls == 2 and forward:
                self.recorded += 1
                if self.repeated and all(each.all_outputs_are_dead() for each in self.repeated):
                    self.overwrite()
            outputs = list(module(*inputs))
            known = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, torch.Tensor)}
            new = [
                i
                for i, x in enumerate(outputs)
                if x is not None and x.untyped_storage().data_ptr() not in known
            ]
            if calls <= 2:
                self.returned += [outputs[i].detach() for i in new]
                return outputs
            recording = recording or Recording([outputs[i] for i in new])
            self.repeated.append(recording)
            for i, place in zip(new, recording.cached_tensor_outputs, strict=True):
                outputs[i] = place.copy_(outputs[i])
            return outputs

        return make_boxed_func(run)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU())
        self.primary, self.first, self.second = nn.Linear(16, 3), nn.Linear(16, 4), nn.Linear(16, 2)

    def forward(self, x, head):
        return getattr(self, head)(self.body(x))


@pytest.fixture
def memory(monkeypatch):
    from torch._functorch import config

    monkeypatch.setattr(
        torch._C, "_add_cached_tensor", lambda x: None
    )  # only known where there is a GPU
    before = config.donated_buffer
    torch.compiler.reset()
    managers = trees.get_obj(trees.local, "tree_manager_containers")
    monkeypatch.setitem(managers, 0, SimpleNamespace(tree_manager="in use"))
    yield Trees()
    config.donated_buffer = before
    torch.compiler.reset()


def steps(model, compiled, given, engine):
    guide = Guide(
        compiled,
        eta="auto" if given == "judge" else Eta(1, 0.5, -1),
        rank=3,
        engine=engine,
        judge_every=2,
    )
    found = []
    for seed, refresh in enumerate([True, False, False, True, False, True, True, False]):
        random = torch.Generator().manual_seed(seed)
        x, xa, y = (
            torch.randn(8, 6, generator=random),
            torch.randn(8, 6, generator=random),
            torch.arange(8) % 3,
        )

        def losses(x=x, y=y):
            return F.cross_entropy(compiled(x, "primary"), y, reduction="none")

        def auxiliary(xa=xa):
            return {name: compiled(xa, name).square().mean() for name in ("first", "second")}

        model.zero_grad()
        if given == "verbs":
            guide.primary(losses(), refresh=refresh)
            guide.auxiliary(auxiliary())
            guide.combine()
        elif given == "auxiliary first":
            guide.auxiliary(auxiliary())
            guide.primary(losses())
            guide.combine()
        else:
            more = {} if given == "primary" else {given: lambda x=x: losses(x + 1)}
            others = auxiliary()
            guide.backward(
                losses if given == "primary" else losses(), others, refresh=refresh, **more
            )
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    return found


@pytest.mark.parametrize(
    ("given", "engine"),
    [
        *(("primary", engine) for engine in ("hooks", "loop")),
        *((given, "loop") for given in ("basis_losses", "judge", "verbs", "auxiliary first")),
    ],
)
def test_compiled_passes_do_not_overwrite_what_a_step_still_needs(memory, given, engine):
    """For example, a callable's forward pass, which `hooks` records later, must not overwrite what
    auxiliary passes saved.
    """
    torch.manual_seed(0)
    plain = Model()
    twin = copy.deepcopy(plain)
    want = steps(plain, plain, given, engine)
    got = steps(twin, torch.compile(twin, backend=memory.backend, fullgraph=True), given, engine)
    assert memory.recorded >= 3
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.usefixtures("memory")
def test_tensors_that_checkpointing_recomputes_are_not_kept():
    """Each tensor asked for would run its block again, and holding it would undo what checkpointing
    saves.
    """
    torch.manual_seed(0)
    model, runs = Model(), []
    body = torch.compile(model.body, backend="aot_eager", fullgraph=True)

    def forward(x, head):
        def block(x):
            runs.append(head)
            return body(x)

        return getattr(model, head)(checkpoint(block, x, use_reentrant=False))

    guide = Guide(model, eta=Eta(1, 0.5, -1), rank=3, engine="loop")
    for refresh in (True, False):
        x = torch.linspace(-1, 1, 48).sin().reshape(8, 6)
        loss = forward(x.flip(0), "first").square().mean()
        runs.clear()
        guide.backward(lambda x=x: forward(x, "primary").square().mean(1), loss, refresh=refresh)
        assert runs.count("first") == 1


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
