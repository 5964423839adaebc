"""Guides together with mixed precision: loss scales, overflow, autocast around a step."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attittud import Eta, Guide
from tests.helpers.oracle import error
from tests.helpers.zoo import problem

ETA = Eta(neutral=1, helpful=0.5, harmful=-1)


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


@pytest.mark.filterwarnings(
    "ignore:There is a performance drop because we have not yet implemented the batching rule"
)
@pytest.mark.parametrize(
    ("engine", "basis"), [("loop", "sketch"), ("loop", "exact"), ("hooks", "svd")]
)
def test_a_refresh_does_not_overflow_before_a_plain_step_does(engine, basis):
    """The mean gradient overflows in float16; per-example gradients lack its factor 1/m."""
    torch.manual_seed(0)
    m = 64
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 8))
    x, y = torch.randn(m, 16), torch.randint(8, (m,))

    def losses(scale: float) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return scale * F.cross_entropy(model(x), y, reduction="none")

    def fits(scale: float) -> bool:
        found = torch.autograd.grad(losses(scale).mean(), list(model.parameters()))
        return all(bool(gradient.isfinite().all()) for gradient in found)

    scale = max(2.0**power for power in range(8, 40) if fits(2.0**power))
    assert not fits(2 * scale) and scale > 2**8
    guide = Guide(model, eta=Eta(1, 1, 0), rank=5, engine=engine, basis=basis)
    report = guide.backward(primary=lambda: losses(scale), auxiliary=losses(scale).mean())
    assert int(report.skipped_refreshes) == 0 and int(report.effective_rank) == 5


@pytest.mark.parametrize(
    ("name", "engine", "basis"),
    [
        ("mlp", "hooks", "svd"),
        ("transformer", "loop", "svd"),
        ("cnn_group_norm", "hooks", "sketch"),
    ],
)
def test_a_step_keeps_its_precision_inside_an_autocast_region(name, engine, basis):
    """As in Lightning's `training_step`: the region is for the forward pass alone."""
    found = []
    for around in (True, False):
        p = problem(name, m=24)
        guide = Guide(
            p.model, eta=Eta(1, 0.5, -1), primary_weight=0.3, rank=3, engine=engine, basis=basis
        )

        def losses(p=p) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return p.losses()

        with torch.autocast("cpu", torch.bfloat16):
            loss = p.loss()
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            guide.backward(primary=losses, auxiliary=loss)
        found.append(p.grads())
    assert all(g is None or torch.equal(g, found[1][name]) for name, g in found[0].items())
