"""The decomposition in a loop written for TorchJD: exchange the aggregator, keep the rest.

    python examples/torchjd_aggregator.py

Two regressions share one network; a third of the auxiliary targets have the wrong sign.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchjd.aggregation import Aggregator, UPGrad
from torchjd.autojac import backward, jac_to_grad

from attittud import Eta
from attittud.integrations.torchjd import Attittud


def train(aggregator: Aggregator, steps: int = 100, *, per_example: bool = False) -> float:
    """The primary error on fresh data after training with this aggregator."""
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    direction = torch.randn(8, generator=random)

    def draw(count: int, wrong: float) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8, generator=random)
        flip = torch.where(torch.rand(count, generator=random) < wrong, -1.0, 1.0)
        return x, torch.tanh(x @ direction) * flip

    primary, auxiliary, fresh = draw(16, 0), draw(128, 0.33), draw(512, 0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        losses = (model(primary[0]) - primary[1]).square()
        loss = (model(auxiliary[0]) - auxiliary[1]).square().mean()
        backward([losses if per_example else losses.mean(), loss])
        jac_to_grad(model.parameters(), aggregator)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return float((model(fresh[0]) - fresh[1]).square().mean())


def main() -> None:
    eta = Eta(neutral=1, helpful=1, harmful=0)
    print(f"UPGrad, both tasks alike:               {train(UPGrad()):.4f}")
    print(f"one direction, the mean primary row:    {train(Attittud(eta)):.4f}")
    guided = Attittud(eta, primary_rows=16, rank=5)
    print(f"five directions of 16 primary examples: {train(guided, per_example=True):.4f}")


if __name__ == "__main__":
    main()
