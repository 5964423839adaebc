"""A-GEM and one-sided PCGrad follow their published formulas; primary losses may be left out."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attittud import Guide, preset

STEPS = 20
A_GEM = preset("pcgrad") | {"primary_weight": 0.0}
ORTHOGONAL = preset("orthogonal") | {"primary_weight": 0.0, "rank": 4, "refresh_every": 4}


class Problem:
    """New and protected data for one network in float64; every step has batches of its own."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
        self.x = torch.randn(STEPS, 2, 6, 5, dtype=torch.float64)
        self.y = torch.randint(3, (STEPS, 2, 6))

    def new(self, step: int) -> Tensor:
        return F.cross_entropy(self.model(self.x[step, 0]), self.y[step, 0])

    def protected(self, step: int) -> Tensor:
        return F.cross_entropy(self.model(self.x[step, 1]), self.y[step, 1], reduction="none")

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(self.model.parameters()))]
        )

    def update(self) -> Tensor:
        return torch.cat([p.grad.flatten() for p in self.model.parameters()])


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_gem_and_pcgrad_follow_their_formula(weight):
    """facebookresearch/agem, model/model.py; weight 1 is gradient surgery (arXiv 2001.06782)."""
    p = Problem()
    guide = Guide(p.model, **A_GEM | {"primary_weight": weight})
    optimizer = torch.optim.SGD(p.model.parameters(), lr=0.3)
    conflicts = 0
    for step in range(STEPS):
        g, r = p.gradient(p.new(step)), p.gradient(p.protected(step).mean())
        conflicts += int(g @ r < 0)
        expected = g - (g @ r) / (r @ r) * r if g @ r < 0 else g
        optimizer.zero_grad()
        mean = p.protected(step).mean()
        primary = (lambda mean=mean: mean) if step % 2 else mean
        report = guide.backward(primary=primary, auxiliary=p.new(step))
        assert report.refreshed and int(report.effective_rank) == 1
        assert torch.allclose(p.update(), expected + weight * r, rtol=0, atol=1e-12)
        optimizer.step()
    assert 0 < conflicts < STEPS


def test_the_primary_pass_is_left_out_if_the_step_does_not_need_it():
    """The update is the same whether the losses are given or not."""
    given, left_out = Problem(), Problem()
    for p, leave in ((given, False), (left_out, True)):
        guide = Guide(p.model, **ORTHOGONAL)
        due = []
        for step in range(9):
            p.model.zero_grad()
            due.append(guide.primary_due)
            losses = None if leave and not due[-1] else p.protected(step)
            report = guide.backward(primary=losses, auxiliary=p.new(step))
            assert report.refreshed == due[-1] and float(report.to_dict()["neutral"]) > 0
        assert due == [step % 4 == 0 for step in range(9)]
    assert torch.equal(given.update(), left_out.update())


def test_micro_batches_may_leave_the_primary_losses_out_too():
    """Whoever leaves one out gets the update and the report of the losses that are there."""
    p, q = Problem(), Problem()
    guides = [Guide(problem.model, **ORTHOGONAL) for problem in (p, q)]
    for step, given in enumerate([(0, 1), (), (0,), (1,)]):
        captured = []
        for problem, guide in zip((p, q), guides, strict=True):
            problem.model.zero_grad()
            for call in (0, 1):
                losses = problem.protected(step + call) / 2
                if call not in given:
                    losses = None if problem is p else 0 * losses
                guide.primary(losses)
            guide.auxiliary(problem.new(step))
            captured.append(guide.combine().captured_primary)
        assert torch.equal(p.update(), q.update())
        if given:
            torch.testing.assert_close(*captured)


@pytest.mark.parametrize(
    "options",
    [{"primary_weight": 0.5}, {"include_mean": True}, {"eta": (1, 1, 0)}, {"refresh_every": 1}],
)
def test_losses_that_are_needed_cannot_be_left_out(options):
    p = Problem()
    guide = Guide(p.model, **ORTHOGONAL | options)
    guide.backward(primary=p.protected(0), auxiliary=p.new(0))
    assert guide.primary_due
    with pytest.raises(TypeError, match="primary_due"):
        guide.backward(primary=None, auxiliary=p.new(1))
