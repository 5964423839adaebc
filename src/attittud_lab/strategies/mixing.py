"""Strategies that need only the mean gradient of each task: sums, ratios, cosine gates, Bloop, and TorchJD's baselines.

Parameters are shared as in a `Guide`: if the primary and at least one auxiliary loss reach them. All other parameters
get the gradients of their own tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attittud_lab.errors import InputError, one_line, optional
from attittud_lab.strategies.base import StepKind, StepLosses, Strategy, Telemetry, register
from attittud_lab.strategies.guided import Guided

if TYPE_CHECKING:  # torch is imported where it is used: names are listed without it
    from torch import Tensor, nn

    from attittud_lab.config.schema import StrategyConfig

Gradients = Sequence["Tensor | None"]


def task_gradients(model: nn.Module, parts: Iterable[Sequence[Tensor]]) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Differentiate the losses (separate graphs): the shared parameters, and a flat vector over them for each loss.

    The first loss is the primary task's. All other parameters receive their gradients here. Each part has the losses of one
    micro-batch; their gradients add up.
    """
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found: list[Gradients] = []
    for losses in parts:  # the next micro-batch is computed when the graphs of this one are gone
        new: list[Gradients] = [
            # A loss has no graph if all parameters that it reaches are frozen.
            torch.autograd.grad(loss, parameters, allow_unused=True) if loss.requires_grad else [None] * len(parameters)
            for loss in losses
        ]
        found = [_sum(a, b) for a, b in zip(found, new, strict=True)] if found else new
        del losses
    shared = []
    for position, parameter in enumerate(parameters):
        own = [gradients[position] for gradients in found]
        reached = [gradient for gradient in own if gradient is not None]
        if own[0] is not None and len(reached) > 1:
            shared.append(position)
        elif reached:
            parameter.grad = torch.stack(reached).sum(0) if len(reached) > 1 else reached[0].clone()
    rows = [torch.cat([_flat(row[i], parameters[i]) for i in shared]) for row in found if shared]
    return [parameters[position] for position in shared], rows


def write(update: Tensor, shared: Sequence[nn.Parameter]) -> None:
    """Give the shared parameters their slices of the update."""
    import torch

    slices = update.split([parameter.numel() for parameter in shared])
    for parameter, part in zip(shared, slices, strict=True):
        parameter.grad = torch.empty_like(parameter).copy_(part.view(parameter.shape))


def _sum(first: Gradients, second: Gradients) -> Gradients:
    return [b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)]


def _flat(gradient: Tensor | None, parameter: nn.Parameter) -> Tensor:
    return parameter.new_zeros(parameter.numel()) if gradient is None else gradient.reshape(-1)


Formula = Callable[["Mixed", "Tensor", "Tensor"], "Tensor"]
"""The part of the auxiliary gradient that the shared parameters get, in addition to the weighted primary gradient.

It takes the strategy, the primary gradient, and the weighted sum of the auxiliary gradients.
"""


def _ratio(value: Tensor, by: Tensor) -> Tensor:
    """The ratio, or 0 where `by` is not above 0."""
    import torch

    return torch.where(by > 0, value / by, 0.0)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return _ratio(a.dot(b), a.norm() * b.norm())


@dataclass(eq=False)
class Mixed(Strategy):
    """A step of one of the formulas below."""

    formula: Formula
    config: StrategyConfig
    model: nn.Module
    weights: Mapping[str, float]
    primary_weight: float = 1.0
    needs_auxiliary: bool = True
    replay: bool = False
    trains_head: bool = True
    memory: dict[str, Tensor] = field(default_factory=dict)
    """State that a formula keeps from step to step; it goes into checkpoints."""

    def __post_init__(self) -> None:
        if self.config.primary_weight is not None:
            self.primary_weight = self.config.primary_weight

    def step(self, losses: StepLosses) -> Telemetry:
        parts = losses.micro
        if not self.needs_auxiliary:
            for part in parts:
                (part.primary().mean() / len(parts)).backward()
            return dict
        shared, rows = task_gradients(self.model, (self._losses(part, 1 / len(parts)) for part in parts))
        if not shared:
            return dict
        primary, auxiliary, *others = rows
        for row in others:
            auxiliary = auxiliary + row
        if any(kept.shape != primary.shape for kept in self.memory.values()):
            raise InputError("strategy: the checkpoint comes from another model; delete it to start from the beginning")
        weight = self.config.ratio if self.replay else self.primary_weight
        write(self.formula(self, primary, auxiliary) + primary * weight, shared)
        similarity = _cosine(primary, auxiliary)
        return lambda: {"cosine": float(similarity)}

    def _losses(self, losses: StepLosses, share: float) -> list[Tensor]:
        factor = 1.0
        if self.replay:
            # The mean loss of a batch in which a share `ratio` of the examples is primary.
            ratio = self.config.ratio
            factor = 1 - ratio
            primary = losses.primary(count=max(1, round(losses.auxiliary_examples * ratio / max(factor, 1e-9))))
        else:
            # With weight 0 a plain sum needs only the gradient of the primary head.
            head_alone = self.primary_weight == 0 and self.formula is _all
            primary = losses.primary(detach=head_alone) * (1.0 if self.trains_head else 0.0)
        tasks = [loss * (self.weights[name] * factor * share) for name, loss in losses.auxiliary().items()]
        return [primary.mean() * share, *tasks]

    def kind(self) -> StepKind | None:
        return StepKind()

    def state_dict(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.memory.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not all(getattr(value, "ndim", 0) == 1 and value.is_floating_point() for value in state.values()):
            raise ValueError("what the strategy keeps are vectors")
        self.memory = dict(state)


def formula(name: str, about: str, **settings: Any) -> Callable[[Formula], Formula]:
    """Register a formula as a strategy; it takes the settings of `Mixed`."""

    def add(function: Formula) -> Formula:
        def build(config: StrategyConfig, model: nn.Module, weights: Mapping[str, float], seed: int) -> Strategy:
            if config.eta is None and config.basis is None:
                return Mixed(function, config, model, weights, **settings)
            return Guided(config, model, weights, seed)  # the preset of this name, with a custom Eta or basis

        # In the other formulas the weight is 0, replaced by a ratio, or has no effect.
        tunes = (
            settings.get("needs_auxiliary", True) and not settings.get("replay") and settings.get("primary_weight") != 0
        )
        register(name, about, build, tunes_primary_weight=tunes, trains_head=settings.get("trains_head", True))
        return function

    return add


@formula("replay", "mix primary (share strategy.ratio) and auxiliary examples in one loss", replay=True)
@formula("multitask", "add the two losses: the strongest simple baseline once its weights are tuned")
@formula(
    "pretrain_as_released",
    "pretrain as in the paper's release: the primary head is not trained, and yet its validation loss chooses the model",
    primary_weight=0.0,
    trains_head=False,
)
@formula(
    "pretrain",
    "train the shared body on auxiliary data alone; primary data train only the primary head",
    primary_weight=0.0,
)
@formula(
    "primary_only",
    "ignore the auxiliary data: the baseline that every other strategy has to beat",
    needs_auxiliary=False,
)
def _all(_: Mixed, _primary: Tensor, auxiliary: Tensor) -> Tensor:
    return auxiliary


@formula(
    "cosine_gate",
    "Du et al. 2018: use the auxiliary gradient only in steps where its cosine with the primary gradient is >= 0",
)
def _gate(_: Mixed, primary: Tensor, auxiliary: Tensor) -> Tensor:
    return (_cosine(primary, auxiliary) >= 0) * auxiliary


@formula(
    "cosine_weighted", "Du et al. 2018: weight the auxiliary gradient by max(0, its cosine with the primary gradient)"
)
def _weighted_gate(_: Mixed, primary: Tensor, auxiliary: Tensor) -> Tensor:
    return _cosine(primary, auxiliary).clamp(min=0) * auxiliary


@formula(
    "bloop",
    "Hsieh et al. 2024: remove from the auxiliary gradient its part along a running mean of the primary gradient",
)
def _bloop(strategy: Mixed, primary: Tensor, auxiliary: Tensor) -> Tensor:
    if "mean" in strategy.memory:
        # In place: a captured step reads the same memory again.
        strategy.memory["mean"].lerp_(primary, 1 - strategy.config.decay)
    else:
        strategy.memory["mean"] = primary.clone()
    mean = strategy.memory["mean"]
    return auxiliary - _ratio(mean.dot(auxiliary), mean.dot(mean)) * mean


class Symmetric(Strategy):
    """An aggregator of TorchJD, which treats the primary task like all others."""

    needs_shared = True

    def __init__(
        self,
        name: str,
        kind: str,
        arguments: Mapping[str, Any],
        model: nn.Module,
        weights: Mapping[str, float],
        *,
        resumable: bool,
    ) -> None:
        aggregation = optional("torchjd.aggregation", "torchjd", f"strategy {name!r}", "torchjd")
        try:
            self.aggregator = getattr(aggregation, kind)(**arguments)
        except (ImportError, AttributeError) as error:
            raise InputError(f"strategy {name!r}: TorchJD cannot provide {kind} here: {one_line(error)}") from None
        self.model, self.weights, self.resumable = model, weights, resumable

    def step(self, losses: StepLosses) -> Telemetry:
        import torch

        share = 1 / len(losses.micro)
        shared, rows = task_gradients(self.model, (self._rows(part, share) for part in losses.micro))
        matrix = torch.stack(rows)
        try:
            update = self.aggregator(matrix)
        except ValueError:  # from NashMTL's solver where all gradients are zero, as with model.head_init: zero
            if matrix.any():
                raise
            update = matrix[0]
        write(update, shared)
        return dict

    def _rows(self, losses: StepLosses, share: float) -> list[Tensor]:
        tasks = [loss * (self.weights[name] * share) for name, loss in losses.auxiliary().items()]
        return [losses.primary().mean() * share, *tasks]


def _symmetric(name: str, kind: str, *, resumable: bool = True, **arguments: Any) -> None:
    """Register an aggregator by its name in TorchJD; the arguments are the ones without a default."""

    def build(config: StrategyConfig, model: nn.Module, weights: Mapping[str, float], _seed: int) -> Strategy:
        given = {key: value(weights) if callable(value) else value for key, value in arguments.items()}
        return Symmetric(config.name, kind, given, model, weights, resumable=resumable)

    register(name, f"{kind} of TorchJD, a baseline that treats all tasks alike (needs the extra torchjd)", build)


_symmetric("torchjd_pcgrad", "PCGrad")
_symmetric("torchjd_gradvac", "GradVac", resumable=False)  # TorchJD offers no access to its state
_symmetric("torchjd_cagrad", "CAGrad", c=0.4)  # the value from its paper
_symmetric("torchjd_mgda", "MGDA")
_symmetric("torchjd_upgrad", "UPGrad")
_symmetric("torchjd_nashmtl", "NashMTL", resumable=False, n_tasks=lambda weights: len(weights) + 1)
_symmetric("torchjd_imtl_g", "IMTLG")
_symmetric("torchjd_aligned_mtl", "AlignedMTL")
_symmetric("torchjd_config", "ConFIG")
