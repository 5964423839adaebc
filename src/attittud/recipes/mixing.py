"""Strategies that need only the mean gradients of the two sides: sums, ratios, cosine gates and Bloop.

Which parameters are shared, and what the heads receive, is as in a `Guide`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attittud.parameters import Layout, trainable
from attittud.recipes.config import StrategyConfig
from attittud.step import add_to, gradients, write_gradients

if TYPE_CHECKING:
    from attittud.recipes.strategies import StepLosses, Telemetry


@dataclass
class Sides:
    """Mean gradients over the shared parameters, as vectors: `auxiliary` is the weighted sum over the sources."""

    primary: Tensor
    auxiliary: Tensor
    decay: float
    memory: dict[str, Tensor]
    """What the strategy keeps from step to step; it goes into checkpoints."""


Formula = Callable[[Sides], Tensor]


@dataclass(frozen=True)
class Mixer:
    """A formula for what the shared parameters receive of the auxiliary gradient, beside the weighted primary one."""

    formula: Formula
    about: str
    primary_weight: float = 1.0
    auxiliary: bool = True
    replay: bool = False


def _all(sides: Sides) -> Tensor:
    return sides.auxiliary


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Of two vectors; 0 where one of them is zero."""
    norms = a.norm() * b.norm()
    return torch.where(norms > 0, torch.dot(a, b) / norms, 0.0)


def _gate(sides: Sides) -> Tensor:
    """Du et al. 2018, unweighted: the auxiliary gradient counts in full or not at all."""
    return torch.where(cosine(sides.primary, sides.auxiliary) >= 0, 1.0, 0.0) * sides.auxiliary


def _weighted_gate(sides: Sides) -> Tensor:
    """Du et al. 2018, weighted: it counts by max(0, cosine)."""
    return cosine(sides.primary, sides.auxiliary).clamp(min=0) * sides.auxiliary


def _bloop(sides: Sides) -> Tensor:
    """Hsieh et al. 2024: what of the auxiliary gradient is orthogonal to a running mean of the primary gradient."""
    mean = sides.memory.get("mean")
    mean = sides.primary.clone() if mean is None else mean.lerp(sides.primary, 1 - sides.decay)
    sides.memory["mean"] = mean
    square = torch.dot(mean, mean)
    share = torch.where(square > 0, torch.dot(mean, sides.auxiliary) / square, 0.0)
    return sides.auxiliary - share * mean


MIXERS: dict[str, Mixer] = {
    "primary_only": Mixer(
        _all, "ignore the auxiliary data: the baseline that every other row has to beat", auxiliary=False
    ),
    "pretrain": Mixer(
        _all, "auxiliary data alone shapes the body; the primary head learns beside it", primary_weight=0.0
    ),
    "multitask": Mixer(_all, "add the two losses: the strongest simple baseline once its weights are tuned"),
    "replay": Mixer(_all, "one mixture of primary (share strategy.ratio) and auxiliary examples", replay=True),
    "cosine_gate": Mixer(_gate, "Du et al. 2018: use the auxiliary gradient only while its cosine is not negative"),
    "cosine_weighted": Mixer(_weighted_gate, "Du et al. 2018: weight the auxiliary gradient by max(0, cosine)"),
    "bloop": Mixer(_bloop, "Hsieh et al. 2024: project on the complement of a running primary gradient"),
}


class Mixed:
    """A step of one of the formulas above."""

    resumable = True

    def __init__(self, mixer: Mixer, model: nn.Module, config: StrategyConfig, weights: Mapping[str, float]) -> None:
        self.mixer, self.model, self.config, self.weights = mixer, model, config, weights
        self.needs_auxiliary = mixer.auxiliary
        self.primary_weight = mixer.primary_weight if config.primary_weight is None else config.primary_weight
        self.memory: dict[str, Tensor] = {}

    def step(self, losses: StepLosses) -> Telemetry:
        if not self.mixer.auxiliary:
            losses.primary().mean().backward()
            return dict
        if self.mixer.replay:
            return self._replay(losses)
        # With weight 0 a plain sum has no use for more than the gradient of the primary head.
        primary = losses.primary(detach=self.primary_weight == 0 and self.mixer.formula is _all).mean()
        found = gradients(primary, trainable(self.model), retain_graph=False, where="primary")
        return self._combine(found, losses.auxiliary(), self.primary_weight, 1.0)

    def _replay(self, losses: StepLosses) -> Telemetry:
        """The mean loss of a batch in which a share `ratio` of the examples is primary."""
        ratio = self.config.ratio
        wanted = round(losses.auxiliary_examples * ratio / max(1 - ratio, 1e-9))
        primary = losses.primary(count=max(1, wanted)).mean()
        found = gradients(primary, trainable(self.model), retain_graph=False, where="primary")
        return self._combine(found, losses.auxiliary(), ratio, 1 - ratio)

    def _combine(
        self, primary: dict[int, Tensor], tasks: dict[str, Tensor], primary_weight: float, factor: float
    ) -> Telemetry:
        named = trainable(self.model)
        total: dict[int, Tensor] = {}
        for position, (name, loss) in enumerate(tasks.items()):
            weighted = loss * (self.weights[name] * factor)
            last = position == len(tasks) - 1
            for key, gradient in gradients(weighted, named, retain_graph=not last, where=name).items():
                add_to(total, key, gradient)
        shared = Layout((name, p) for name, p in named if id(p) in primary and id(p) in total)
        if not shared.parameters:
            write_gradients(named, shared, torch.empty(0), primary | total)
            return dict
        flat_primary, flat_auxiliary = shared.empty(), shared.empty()
        shared.add_(flat_primary, [primary[id(p)] for p in shared.parameters], fresh=True)
        shared.add_(flat_auxiliary, [total[id(p)] for p in shared.parameters], fresh=True)
        similarity = cosine(flat_primary, flat_auxiliary)
        update = self.mixer.formula(Sides(flat_primary, flat_auxiliary, self.config.decay, self.memory))
        update = update + flat_primary.mul_(primary_weight)
        rest = {
            key: gradient
            for key, gradient in (primary | total).items()
            if key not in {id(p) for p in shared.parameters}
        }
        write_gradients(named, shared, update, rest)
        return partial(_read, similarity)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory = dict(state)


def _read(similarity: Tensor) -> dict[str, float]:
    return {"cosine": float(similarity)}
