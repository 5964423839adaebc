"""Losses of two tasks with explicit gradients, and the update of a strategy."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attittud_lab.config.schema import StrategyConfig
from attittud_lab.strategies import Strategy, make_strategy

WEIGHTS = {"a": 1.0, "b": 0.5}


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.heads = nn.ModuleDict({name: nn.Linear(4, 2) for name in ("primary", "a", "b")})

    def forward(self, x: Tensor, head: str, detach: bool = False) -> Tensor:
        features = torch.tanh(self.body(x))
        return self.heads[head](features.detach() if detach else features)


@dataclass
class Losses:
    """A step's losses on fixed data; `sign` turns task a against the primary one."""

    model: TwoHeads
    sign: float = 1.0
    auxiliary_examples: int = 12

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.x = {name: torch.randn(6, 5, dtype=torch.float64) for name in ("primary", "a", "b")}
        self.micro = [self]

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        return self.model(self.x["primary"][:count], "primary", detach).square().mean(1)

    def auxiliary(self) -> dict[str, Tensor]:
        return {
            name: self.sign * self.model(self.x[name], name).square().mean() for name in ("a", "b")
        }

    def basis(self) -> Tensor:
        return self.primary()


def setting(sign: float = 1.0) -> tuple[TwoHeads, Losses, Tensor, Tensor]:
    """A model, its losses, and both mean gradients of the body."""
    torch.manual_seed(0)
    model = TwoHeads().double()
    losses = Losses(model, sign)
    tasks = losses.auxiliary()
    auxiliary = body_gradient(model, tasks["a"]) + 0.5 * body_gradient(model, tasks["b"])
    return model, losses, body_gradient(model, losses.primary().mean()), auxiliary


def body_gradient(model: TwoHeads, loss: Tensor) -> Tensor:
    gradients = torch.autograd.grad(loss, list(model.body.parameters()))
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def strategy(model: TwoHeads, **settings: Any) -> Strategy:
    return make_strategy(StrategyConfig(**settings), model, weights=WEIGHTS, seed=0)


def body_update(model: TwoHeads) -> Tensor:
    grads = [parameter.grad for parameter in model.body.parameters()]
    return torch.cat([g.reshape(-1) for g in grads if g is not None])
