"""A linear model whose gradients are known, and a small job."""

import torch
from torch import Tensor, nn

from attittud import Eta, Guide
from attittud_lab.diagnose import Probe, summarise_steps

JOB = """
data:
  primary: {path: digits, train: 100, validation: 60, test: 200}
  auxiliary:
    more: {path: digits, examples: 300, share_head: true}
    other: {path: digits, examples: 200}
model: {name: small-cnn, width: 4, dropout: 0.2}
training: {guided: {steps: 60, primary_batch: 16, batch_size: 16}}
strategy: {rank: 4, refresh_every: 5}
"""


# ------------------------------------------------------------------------------------------------------ the probe


class Linear:
    """Losses that are linear in w: the gradient of primary example i is row i, and the sources have fixed gradients."""

    def __init__(self, primary: Tensor, **sources: Tensor) -> None:
        self.rows, self.sources, self.calls = primary, sources, []
        self.model = nn.ParameterDict({"a": torch.zeros(2, 3), "b": torch.zeros(primary.shape[1] - 6)}).double()

    def flat(self) -> Tensor:
        return torch.cat([parameter.flatten() for parameter in self.model.values()])

    def primary(self, rows: Tensor) -> Tensor:
        self.calls.append(set(rows.tolist()))
        return self.rows[rows] @ self.flat()

    def auxiliary(self) -> dict[str, Tensor]:
        return {name: gradient @ self.flat() for name, gradient in self.sources.items()}

    def probe(self, *, basis_batch: int = 8, primary_batch: int = 8, **guide: object) -> Probe:
        rank = {} if guide.get("basis") == "mean" else {"rank": 4}
        settings = {"eta": Eta(1, 1, 1), "engine": "loop", "refresh_every": 5, **rank, **guide}
        sizes = {"basis_batch": basis_batch, "primary_batch": primary_batch}
        chosen = Guide(self.model, **settings)
        return Probe(chosen, self.primary, self.auxiliary, examples=len(self.rows), seed=3, **sizes)

    def alarms(self, steps: int = 200, **settings: object) -> list[bool]:
        probe = self.probe(**settings)
        found = summarise_steps([probe.measure(step) for step in range(steps)], probe)
        return [alarm["fired"] for alarm in found["alarms"]]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)
