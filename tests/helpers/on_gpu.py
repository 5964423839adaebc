"""Two small models and their training steps on a GPU."""

import torch
from torch import nn
from torch.nn import functional as F

from attittud import Eta, Guide

DEVICE = "cuda"
ETA = Eta(neutral=0.9, helpful=1.1, harmful=-0.5)


class Perceptron(nn.Module):
    """A body and two heads."""

    def __init__(self, width=64, depth=2):
        super().__init__()
        layers = [
            layer
            for _ in range(depth)
            for layer in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
        ]
        self.body = nn.Sequential(*layers)
        self.primary, self.auxiliary = nn.Linear(width, 5), nn.Linear(width, 7)

    def forward(self, x, head):
        return getattr(self, head)(self.body(x))


class Convolutions(nn.Module):
    """Convolutions with BatchNorm, channels_last."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.primary, self.auxiliary = nn.Linear(32, 5), nn.Linear(32, 7)
        self.to(memory_format=torch.channels_last)

    def forward(self, x, head):
        return getattr(self, head)(self.body(x))


class Run:
    """A model, its data in fixed buffers, and a training step with a guide."""

    def __init__(self, model, batch=16, **settings):
        self.model = model.to(DEVICE)
        shape = (batch, 3, 12, 12) if isinstance(model, Convolutions) else (batch, 64)
        self.xp, self.xa = torch.empty(shape, device=DEVICE), torch.empty(shape, device=DEVICE)
        if isinstance(model, Convolutions):
            self.xp, self.xa = (x.to(memory_format=torch.channels_last) for x in (self.xp, self.xa))
        self.yp = torch.empty(batch, dtype=torch.int64, device=DEVICE)
        self.ya = torch.empty(batch, dtype=torch.int64, device=DEVICE)
        self.load(0)
        self.guide = Guide(model, **{"eta": ETA, "primary_weight": 0.3, "rank": 4, **settings})
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=True)

    def load(self, seed):
        """New data in the same memory."""
        random = torch.Generator().manual_seed(seed)
        for x in (self.xp, self.xa):
            x.copy_(torch.randn(x.shape, generator=random))
        self.yp.copy_(torch.randint(5, self.yp.shape, generator=random))
        self.ya.copy_(torch.randint(7, self.ya.shape, generator=random))

    def losses(self):
        return F.cross_entropy(self.model(self.xp, "primary"), self.yp, reduction="none")

    def loss(self):
        return F.cross_entropy(self.model(self.xa, "auxiliary"), self.ya)

    def step(self, refresh, **arguments):
        self.optimizer.zero_grad(set_to_none=True)
        # `hooks` has to see the forward pass of the basis.
        primary = self.losses if self.guide.engine.name == "hooks" else self.losses()
        report = self.guide.backward(
            primary=primary, auxiliary=self.loss(), refresh=refresh, **arguments
        )
        self.optimizer.step()
        return report

    def parameters(self):
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def close(got, want, tolerance=1e-5):
    error = float((got.double() - want.double()).norm() / want.double().norm())
    assert error <= tolerance, f"relative error {error:.2e}"


def relative(found, wanted):
    """The error of a float64 result or of its rounding."""
    return float((found.double() - wanted).norm() / wanted.norm())
