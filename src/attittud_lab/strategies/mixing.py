"""Strategies that need only the mean gradients of the two sides: sums, ratios, cosine gates and Bloop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attittud_lab.config.schema import StrategyConfig
from attittud_lab.strategies.gradients import Sides, cosine
from attittud_lab.training.capture import StepKind

if TYPE_CHECKING:
    from attittud_lab.strategies.registry import MicroLosses, StepLosses, Telemetry


@dataclass
class Pair:
    """Mean gradients over the shared parameters; `auxiliary` is the weighted sum over the sources."""

    primary: Tensor
    auxiliary: Tensor
    decay: float
    memory: dict[str, Tensor]
    """What the strategy keeps from step to step; it goes into checkpoints."""


Formula = Callable[[Pair], Tensor]


@dataclass(frozen=True)
class Mixer:
    """A formula for what the shared parameters receive of the auxiliary gradient, beside the weighted primary one."""

    formula: Formula
    about: str
    primary_weight: float = 1.0
    auxiliary: bool = True
    replay: bool = False
    head: bool = True
    """Whether the primary head is trained; one that is not lets its loss choose the model, since its accuracy means nothing."""


def _all(pair: Pair) -> Tensor:
    return pair.auxiliary


def _gate(pair: Pair) -> Tensor:
    """Du et al. 2018, unweighted: the auxiliary gradient counts in full or not at all."""
    return torch.where(cosine(pair.primary, pair.auxiliary) >= 0, 1.0, 0.0) * pair.auxiliary


def _weighted_gate(pair: Pair) -> Tensor:
    """Du et al. 2018, weighted: it counts by max(0, cosine)."""
    return cosine(pair.primary, pair.auxiliary).clamp(min=0) * pair.auxiliary


def _bloop(pair: Pair) -> Tensor:
    """Hsieh et al. 2024: what of the auxiliary gradient is orthogonal to a running mean of the primary gradient."""
    if "mean" in pair.memory:
        pair.memory["mean"].lerp_(pair.primary, 1 - pair.decay)  # in place: a captured step goes on where it lies
    else:
        pair.memory["mean"] = pair.primary.clone()
    mean = pair.memory["mean"]
    square = torch.dot(mean, mean)
    share = torch.where(square > 0, torch.dot(mean, pair.auxiliary) / square, 0.0)
    return pair.auxiliary - share * mean


MIXERS: dict[str, Mixer] = {
    "primary_only": Mixer(
        _all, "ignore the auxiliary data: the baseline that every other row has to beat", auxiliary=False
    ),
    "pretrain": Mixer(
        _all, "auxiliary data alone shapes the body; the primary head learns beside it", primary_weight=0.0
    ),
    "pretrain_as_released": Mixer(
        _all,
        "pretrain with an untrained primary head whose loss chooses the model, as in the paper's release; to compare with",
        primary_weight=0.0,
        head=False,
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
        parts = losses.micro
        if not self.mixer.auxiliary:
            for part in parts:
                (part.primary().mean() / len(parts)).backward()
            return dict
        ratio, primary_weight = self.config.ratio, self.primary_weight
        # Replay is the mean loss of a batch in which a share `ratio` of the examples is primary.
        factor = 1 - ratio if self.mixer.replay else 1.0
        sides = Sides.of(self.model, (self._losses(part, factor, 1 / len(parts)) for part in parts))
        return self._combine(sides, ratio if self.mixer.replay else primary_weight)

    def _losses(self, losses: MicroLosses, factor: float, share: float) -> list[Tensor]:
        if self.mixer.replay:
            ratio = self.config.ratio
            primary = losses.primary(count=max(1, round(losses.auxiliary_examples * ratio / max(1 - ratio, 1e-9))))
        else:
            # With weight 0 a plain sum has no use for more than the gradient of the primary head.
            head_alone = self.primary_weight == 0 and self.mixer.formula is _all
            primary = losses.primary(detach=head_alone) * (1.0 if self.mixer.head else 0.0)
        tasks = [loss * (self.weights[name] * factor * share) for name, loss in losses.auxiliary().items()]
        return [primary.mean() * share, *tasks]

    def _combine(self, sides: Sides, primary_weight: float) -> Telemetry:
        if not sides.shared:
            return dict
        auxiliary = sides.rows[1]
        for row in sides.rows[2:]:
            auxiliary = auxiliary + row
        pair = Pair(sides.rows[0], auxiliary, self.config.decay, self.memory)
        sides.write(self.mixer.formula(pair) + pair.primary * primary_weight)
        return partial(_read, cosine(pair.primary, auxiliary))

    def kind(self) -> StepKind | None:
        return StepKind()

    def replayed(self, kind: StepKind) -> None:
        """What is kept from step to step is on the device."""

    def state_dict(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.memory.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory = dict(state)


def _read(similarity: Tensor) -> dict[str, float]:
    return {"cosine": float(similarity)}
