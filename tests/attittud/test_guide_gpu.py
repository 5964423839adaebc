"""Steps on a GPU: their kernels, no waiting, reduced precision, memory."""

import contextlib
import warnings

import pytest
import torch

from attittud import Guide, decompose
from attittud import kernels as linalg
from tests.helpers.on_gpu import DEVICE, ETA, Convolutions, Perceptron, Run, close

pytestmark = pytest.mark.gpu


@contextlib.contextmanager
def no_waiting():
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_kernels_and_torch_give_the_same_update(monkeypatch):
    updates = []
    for fused in (True, False):
        torch.manual_seed(0)
        run = Run(Perceptron(), include_mean=True)
        if not fused:
            monkeypatch.setattr(linalg, "_fast", lambda *tensors: None)
        run.step(True)
        run.load(1)
        run.step(False)
        updates.append(torch.cat([p.grad.flatten() for p in run.model.parameters()]))
    close(*updates, 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_hooks_with_and_without_a_kernel_give_the_same_basis(monkeypatch, dtype):
    kernels, calls, bases = linalg.kernels(), [], []
    kernel = kernels.add_windows_
    monkeypatch.setattr(kernels, "add_windows_", lambda *args: calls.append(args) or kernel(*args))
    for fused in (True, False):
        torch.manual_seed(0)
        run = Run(Convolutions().eval(), engine="hooks")
        if not fused:
            monkeypatch.setattr(kernels, "serves_windows", lambda *_: False)
        with torch.autocast(DEVICE, dtype):
            run.step(True)
        bases.append(run.guide.subspace.rows)
        assert bool(calls) == fused
        calls.clear()
    close(*bases, 1e-4)


@pytest.mark.parametrize(
    ("model", "basis", "include_mean"),
    [
        (Perceptron, "sketch", True),
        (Convolutions, "exact", False),
        (Perceptron, "canonical", False),
    ],
)
def test_a_step_never_waits(model, basis, include_mean):
    run = Run(model(), basis=basis, include_mean=include_mean)
    run.step(True)
    run.step(False)
    with no_waiting():
        report = run.step(False)
        run.step(True)
    assert torch.isfinite(report.cosine)


def test_a_refresh_never_waits():
    run = Run(Perceptron(), engine="loop")
    run.step(True)
    with no_waiting():
        run.step(True)


def check_update(run, shared_scale=1.0, tolerance=1e-5):
    """`.grad` against the pure maths on the gradients and the basis that the guide saw."""
    shared = list(run.guide.shared_parameters.values())
    losses, loss = run.losses(), run.loss()
    g_p = torch.autograd.grad(losses.mean() * shared_scale, shared, retain_graph=True)
    g_a = torch.autograd.grad(loss * shared_scale, shared, retain_graph=True)
    g_p, g_a = (torch.cat([g.flatten() for g in gs]).double() for gs in (g_p, g_a))
    for parameter in run.model.parameters():
        parameter.grad = None
    run.guide.backward(primary=losses * shared_scale, auxiliary=loss * shared_scale, refresh=False)
    got = torch.cat([p.grad.flatten() for p in shared]).double()
    rows = run.guide.subspace.rows.double()
    kept = rows[rows.norm(dim=1) > 0.5]
    assert (kept @ kept.T - torch.eye(len(kept), device=DEVICE)).abs().max() < 1e-6
    close(got, decompose(g_a, g_p, rows).combine(ETA) + 0.3 * g_p, tolerance)


@pytest.fixture
def tf32():
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("fused", [True, False])
def test_tf32_does_not_change_the_maths(monkeypatch, fused):
    if not fused:
        monkeypatch.setattr(linalg, "_fast", lambda *tensors: None)
    run = Run(Perceptron(depth=3))
    run.step(True)
    check_update(run)


def test_steps_work_under_bf16_autocast():
    run = Run(Perceptron())
    with torch.autocast(DEVICE, torch.bfloat16):
        run.step(True)
        check_update(run)


def test_steps_work_in_fp16_with_a_scaler():
    run = Run(Perceptron())
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**10, growth_interval=1000)
    for refresh in (True, False, False):
        run.optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16):
            losses, loss = run.losses(), run.loss()
        run.guide.backward(
            primary=scaler.scale(losses), auxiliary=scaler.scale(loss), refresh=refresh
        )
        scaler.step(run.optimizer)
        scaler.update()
        assert all(torch.isfinite(p).all() for p in run.model.parameters())
    # Overflow reaches .grad, and the scaler skips the step.
    before = run.parameters()
    run.optimizer.zero_grad()
    run.guide.backward(
        primary=scaler.scale(run.losses() * torch.inf),
        auxiliary=scaler.scale(run.loss()),
        refresh=True,
    )
    scaler.step(run.optimizer)
    scaler.update()
    assert torch.equal(run.parameters(), before)
    assert scaler.get_scale() == 2.0**9
    assert int(run.guide._schedule.skipped) == 1


@pytest.mark.parametrize("engine", ["loop", "hooks"])
def test_memory_above_the_multitask_step(engine):
    """At most (k + 3) D numbers between refreshes and (2k + 3) D in one."""
    k = 5

    def peak(step):
        step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated()

    run = Run(Perceptron(width=64, depth=2), rank=k)
    wide = Perceptron(width=1024, depth=8)  # 8.4 M parameters
    run.model = wide.to(DEVICE)
    run.xp, run.xa = torch.randn(8, 1024, device=DEVICE), torch.randn(8, 1024, device=DEVICE)
    run.yp, run.ya = run.yp[:8], run.ya[:8]
    run.optimizer = torch.optim.SGD(wide.parameters(), lr=1e-4)

    def multitask():
        run.optimizer.zero_grad(set_to_none=True)
        (run.losses().mean() + run.loss()).backward()

    base = peak(multitask)
    run.optimizer.zero_grad(set_to_none=True)
    run.guide = Guide(wide, eta=ETA, rank=k, engine=engine)

    def guided(refresh):
        run.optimizer.zero_grad(set_to_none=True)
        primary = run.losses if engine == "hooks" else run.losses()
        run.guide.backward(primary=primary, auxiliary=run.loss(), refresh=refresh)

    guided(True)
    size = sum(p.numel() for p in run.guide.shared_parameters.values())
    slack = 1.02 * 4 * size
    assert peak(lambda: guided(False)) - base <= (k + 3) * slack
    assert peak(lambda: guided(True)) - base <= (2 * k + 3) * slack
