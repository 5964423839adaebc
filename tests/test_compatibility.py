"""Guides beside what else people use: compiled models, checkpointing, mixed precision, loss scaling, memory formats."""

import copy
from typing import ClassVar

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from oracle import error
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from watch import LiveMemory
from zoo import problem

from attittud import Eta, Guide
from attittud.autograd.layout import Layout
from attittud.engine import UnsupportedError, make_engine
from attittud.engine.gradients import Dense

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)
ENGINES = ["loop", "batched", "hooks"]


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
            primary=lambda: F.cross_entropy(model(x), y, reduction="none"), auxiliary=model(xa).square().mean()
        )
        optimizer.step()
    return {name.removeprefix("_orig_mod."): p.grad for name, p in model.named_parameters()}


@pytest.fixture
def net() -> Net:
    return Net().double()


@pytest.mark.parametrize("engine", ENGINES)
def test_compiled_models_keep_their_result_and_their_graphs(net, engine):
    """One graph for each input shape, no breaks, and no further compilation when refreshes come and go."""
    want = train(copy.deepcopy(net), "loop")
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True, dynamic=False)
    assert error(train(compiled, engine), want) < 1e-11
    assert sum(counters["graph_break"].values()) == 0
    assert counters["stats"]["unique_graphs"] == 2


def test_compiled_in_place(net):
    want = train(copy.deepcopy(net), "loop")
    torch._dynamo.reset()
    net.compile(backend="aot_eager")
    assert error(train(net, "hooks"), want) < 1e-11


@pytest.mark.parametrize("engine", ENGINES)
def test_activation_checkpointing(net, engine):
    want = train(copy.deepcopy(net), "loop")
    net.checkpointed = True
    assert error(train(net, engine), want) < 1e-11


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


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
def test_autocast(engine):
    """bf16 forward passes, projections in full precision."""
    grads = []
    for kind, dtype in (("loop", torch.float32), (engine, torch.bfloat16)):
        p = problem("transformer")
        guide = Guide(p.model, eta=Eta(1, 1, 1), rank=3, engine=kind)

        def losses(p=p, dtype=dtype) -> Tensor:
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                return p.losses()

        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            auxiliary = p.loss()
        guide.backward(primary=losses, auxiliary=auxiliary)
        grads.append(p.grads())
        assert all(g is None or g.dtype == torch.float32 for g in p.grads().values())
    assert error(grads[1], grads[0]) < 3e-2


@pytest.mark.parametrize("name", ["transformer", "cnn_group_norm", "mlp"])
def test_sketches_under_autocast_are_those_of_the_loop(name):
    """Per-example gradients are contracted in float32: not further from exact arithmetic than the loop's."""
    exact, rows = problem(name, torch.float64), {}
    for engine in ("loop", "hooks"):
        p = problem(name)
        guide = Guide(p.model, eta=ETA, rank=2, engine=engine)

        def losses(p=p) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return p.losses()

        guide.backward(primary=losses, auxiliary=p.loss())
        rows[engine] = guide.subspace.rows.double()
    guide = Guide(exact.model, eta=ETA, rank=2, engine="loop")
    guide.backward(primary=exact.losses(), auxiliary=exact.loss())
    reference = guide.subspace.rows
    distance = {engine: (found - reference).norm() / reference.norm() for engine, found in rows.items()}
    assert distance["loop"] > 1e-4  # bf16 did happen
    assert distance["hooks"] < 1.5 * distance["loop"]


@pytest.mark.parametrize("engine", ENGINES)
def test_loss_scaling(engine):
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


@pytest.mark.parametrize("engine", ENGINES)
def test_overflow_skips_the_optimizer_step(engine):
    p = problem("mlp")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    optimizer = torch.optim.SGD(p.model.parameters(), lr=0.1)
    before = {name: x.detach().clone() for name, x in p.model.named_parameters()}
    guide = Guide(p.model, eta=ETA, rank=3, engine=engine)
    report = guide.backward(
        primary=lambda: 2.0**20 * scaler.scale(p.losses()), auxiliary=2.0**20 * scaler.scale(p.loss())
    )
    scaler.step(optimizer)
    assert all(torch.equal(before[name], x) for name, x in p.model.named_parameters())
    with pytest.warns(UserWarning, match="NaN or Inf"):
        assert report.to_dict()["skipped_refreshes"] == 1


class TF32(TorchDispatchMode):
    """What a GPU does to products of float32 matrices, their operands rounded to 10 bits."""

    FIRST: ClassVar = {
        "mm": 0,
        "bmm": 0,
        "addmm": 1,
        "addmm_": 1,
        "baddbmm_": 1,
        "convolution": 0,
        "convolution_backward": 0,
    }

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        at = self.FIRST.get(func.overloadpacket.__name__)
        if at is not None:
            count = 3 if func.overloadpacket is torch.ops.aten.convolution_backward else 2
            args = (*args[:at], *map(self.rounded, args[at : at + count]), *args[at + count :])
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return x
        return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.fixture
def tf32():
    torch.set_float32_matmul_precision("high")
    with TF32():
        yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("name", ["mlp", "transformer", "cnn_group_norm", "reused"])
def test_hooks_go_with_tf32(name):
    """Its check allows for the rounding; what it finds is what the loop finds."""
    rows = []
    for engine in ("loop", "hooks"):
        p = problem(name)
        guide = Guide(p.model, eta=ETA, rank=2, engine=engine)
        guide.backward(primary=p.losses, auxiliary=p.loss())
        rows.append(guide.subspace.rows)
    assert 1e-5 < (rows[1] - rows[0]).norm() / rows[0].norm() < 1e-2


def test_without_tf32_the_check_is_as_sharp_as_float32(monkeypatch):
    """An error of a thousandth shows."""
    monkeypatch.setattr(Dense, "chunk", lambda self, rows, dtype: 1.001 * self.gradients[rows].to(dtype))
    p = problem("mlp")
    with pytest.raises(UnsupportedError, match=r"body\.0\.bias \(by 0\.001 of its size\)"):
        Guide(p.model, eta=ETA, rank=2, engine="hooks").backward(primary=p.losses, auxiliary=p.loss())


@pytest.mark.parametrize("engine", ["loop", "hooks"])
def test_channels_last(engine):
    grads = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        p = problem("cnn_group_norm", torch.float64)
        p.model.to(memory_format=memory_format)
        guide = Guide(p.model, eta=ETA, rank=3, engine=engine)
        guide.backward(primary=p.losses, auxiliary=p.loss())
        grads.append(p.grads())
        convolution = p.model.body[0].weight
        assert convolution.grad.stride() == convolution.stride()
    assert error(grads[1], grads[0]) < 1e-11


def test_hooks_form_no_matrix_of_all_gradients():
    """Beside its result ΠJ holds at most one further vector of the model's size, whatever the number of examples."""
    width, depth, k = 48, 6, 5
    for m in (24, 96):
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
        x = torch.randn(m, 3, width)  # sequences: gradients have to be formed
        layout = Layout(model.named_parameters())
        engine = make_engine("hooks")
        for _ in range(2):  # the first one with its check
            with engine.watch(model), LiveMemory() as watch:
                losses = model(x).square().mean((1, 2))
                activations = watch.live
                jacobian = engine.jacobian(losses, layout)
                watch.peak = 0
                jacobian.left(torch.randn(k, m))
        vectors = (watch.peak - activations) / (4 * layout.size)
        passing = 5 * x.numel() / layout.size  # gradients of activations on their way
        assert k < vectors < k + 1 + passing < m
