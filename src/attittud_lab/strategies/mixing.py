"""Strategies that need only the mean gradient of each task.

These are sums, ratios, cosine gates, Bloop, and TorchJD's baselines. Parameters are shared as in a
`Guide`: if the primary and at least one auxiliary loss reach them. All other parameters get the
gradients of their own tasks.
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
"""The gradient of one loss for each parameter; None where the loss does not reach it."""


def task_gradients(
    model: nn.Module, parts: Iterable[Sequence[Tensor]]
) -> tuple[list[nn.Parameter], list[Tensor]]:
    """Differentiate the losses of all tasks, which have separate graphs.

    Each part has the losses of one micro-batch, the primary task's first. The gradients of the
    parts add up. Returns the shared parameters, and for each task its gradient as a flat vector
    over them. All other parameters receive their gradients here.
    """
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    tasks = _summed_gradients(parameters, parts)
    shared = []
    """The positions of the shared parameters."""
    for position, (parameter, *gradients) in enumerate(zip(parameters, *tasks, strict=True)):
        reaching = [gradient for gradient in gradients if gradient is not None]
        primary_reaches = gradients[0] is not None
        if primary_reaches and len(reaching) > 1:
            shared.append(position)
        elif len(reaching) > 1:  # several auxiliary tasks
            parameter.grad = torch.stack(reaching).sum(0)
        elif reaching:
            parameter.grad = reaching[0].clone()
    if not shared:
        return [], []
    rows = []
    for task in tasks:  # one after the other: flat copies need memory
        pieces = [_flat(task[position], parameters[position]) for position in shared]
        rows.append(torch.cat(pieces))
    return [parameters[position] for position in shared], rows


def _summed_gradients(
    parameters: Sequence[nn.Parameter], parts: Iterable[Sequence[Tensor]]
) -> list[Gradients]:
    """Return the gradients of each task, summed over the micro-batches."""
    sums: list[Gradients] = []
    for losses in parts:
        gradients = [_gradient(loss, parameters) for loss in losses]
        if sums:
            gradients = list(map(_sum, sums, gradients))
        sums = gradients
        del losses  # frees the graphs before the next micro-batch is computed
    return sums


def _gradient(loss: Tensor, parameters: Sequence[nn.Parameter]) -> Gradients:
    """Return the gradient of one loss for each parameter."""
    import torch

    if not loss.requires_grad:  # all parameters that it reaches are frozen
        return [None] * len(parameters)
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def write(update: Tensor, shared: Sequence[nn.Parameter]) -> None:
    """Give the shared parameters their slices of the update."""
    import torch

    slices = update.split([parameter.numel() for parameter in shared])
    for parameter, part in zip(shared, slices, strict=True):
        parameter.grad = torch.empty_like(parameter).copy_(part.view(parameter.shape))


def _sum(first: Gradients, second: Gradients) -> Gradients:
    """Add gradients parameter by parameter; None counts as zero."""
    sums: list[Tensor | None] = []
    for a, b in zip(first, second, strict=True):
        if a is None:
            sums.append(b)
        elif b is None:
            sums.append(a)
        else:
            sums.append(a + b)
    return sums


def _flat(gradient: Tensor | None, parameter: nn.Parameter) -> Tensor:
    """Return a gradient as a vector; zeros where a loss does not reach the parameter."""
    if gradient is None:
        return parameter.new_zeros(parameter.numel())
    return gradient.reshape(-1)


Formula = Callable[["Mixed", "Tensor", "Tensor"], "Tensor"]
"""The auxiliary part of the update; shared parameters get it plus the weighted primary gradient.

It takes the strategy, the primary gradient, and the weighted sum of the auxiliary gradients.
"""


def _ratio(value: Tensor, by: Tensor) -> Tensor:
    """Return value / by, or 0 where `by` is not above 0."""
    import torch

    return torch.where(by > 0, value / by, 0.0)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return ⟨a, b⟩ / (‖a‖ ‖b‖), or 0 if one of them is zero."""
    return _ratio(a.dot(b), a.norm() * b.norm())


@dataclass(eq=False)
class Mixed(Strategy):
    """A step of one of the formulas below.

    The update is weight · g_primary + formula(g_primary, g_auxiliary).
    """

    formula: Formula
    config: StrategyConfig
    model: nn.Module
    weights: Mapping[str, float]
    """The weights of the auxiliary sources, by name."""
    primary_weight: float = 1.0
    """The weight of the primary gradient, unless strategy.primary_weight is set."""
    needs_auxiliary: bool = True
    replay: bool = False
    """Whether a step imitates one batch in which a share strategy.ratio is primary."""
    trains_head: bool = True
    memory: dict[str, Tensor] = field(default_factory=dict)
    """State that a formula keeps from step to step; it goes into checkpoints."""

    def __post_init__(self) -> None:
        if self.config.primary_weight is not None:
            self.primary_weight = self.config.primary_weight

    def step(self, losses: StepLosses) -> Telemetry:
        """Write weight · p + formula(p, a) into the `.grad` of the shared parameters.

        p is the primary gradient and a the sum of the weighted auxiliary ones. The figure of the
        step is cos(p, a); there is none without auxiliary losses or shared parameters.
        """
        parts = losses.micro
        if not self.needs_auxiliary:
            for part in parts:
                (part.primary().mean() / len(parts)).backward()
            return dict  # no figures
        share = 1 / len(parts)
        shared, rows = task_gradients(self.model, (self._losses(part, share) for part in parts))
        if not shared:
            return dict
        primary, auxiliary, *others = rows
        for row in others:
            auxiliary = auxiliary + row
        weight = self.primary_weight
        if self.replay:
            weight = self.config.ratio
        write(self.formula(self, primary, auxiliary) + primary * weight, shared)
        similarity = _cosine(primary, auxiliary)
        return lambda: {"cosine": float(similarity)}

    def _losses(self, losses: StepLosses, share: float) -> list[Tensor]:
        """Return the losses of one micro-batch, the primary task's first; auxiliary losses have
        their weights.

        `share` is the micro-batch's part of the step.
        """
        factor = 1.0
        if self.replay:
            # The update is that of one batch in which a share `ratio` of the examples is primary:
            # beside n auxiliary examples it has n ratio / (1 - ratio) primary ones. `step`
            # multiplies the primary gradient by the ratio.
            ratio = self.config.ratio
            factor = 1 - ratio
            count = round(losses.auxiliary_examples * ratio / max(factor, 1e-9))
            primary = losses.primary(count=max(1, count))
        else:
            # In a plain sum with weight 0 the primary loss trains its head alone.
            head_alone = self.primary_weight == 0 and self.formula is _all
            primary = losses.primary(detach=head_alone) * float(self.trains_head)
        tasks = [primary.mean() * share]
        for name, loss in losses.auxiliary().items():
            tasks.append(loss * (self.weights[name] * factor * share))
        return tasks

    def kind(self) -> StepKind | None:
        return StepKind()

    def state_dict(self) -> dict[str, Any]:
        return {name: tensor.clone() for name, tensor in self.memory.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory = dict(state)


_DU = "Du et al. 2018"
_GATE = f"{_DU}: use the auxiliary gradient only in steps where"
_BLOOP = "Hsieh et al. 2024: remove from the auxiliary gradient"


def formula(
    name: str, about: str, *, translates: bool = False, **settings: Any
) -> Callable[[Formula], Formula]:
    """Return a decorator that registers a formula as the strategy `name`.

    `about` is its line in `--help`. `settings` are attributes of `Mixed`. `translates` is declared
    to the registry. A configuration with an Eta or a basis of its own gets a `Guided` strategy
    instead of the formula.
    """

    def add(function: Formula) -> Formula:
        def build(
            config: StrategyConfig, model: nn.Module, weights: Mapping[str, float], seed: int
        ) -> Strategy:
            if config.eta is None and config.basis is None:
                return Mixed(function, config, model, weights, **settings)
            if translates:
                setting = "eta" if config.eta is not None else "basis"
                problem = f"strategy.{setting}: {name} does not split gradients"
                advice = "leave it out, or use a LabelChannel with a Guide in a loop of your own"
                raise InputError(f"{problem}; {advice}")
            # The preset of this name, with a custom Eta or basis.
            return Guided(config, model, weights, seed)

        # The primary weight is not tuned where it has no effect, is a ratio, or is 0 by definition.
        no_effect = not settings.get("needs_auxiliary", True)
        is_ratio = settings.get("replay", False)
        is_zero = settings.get("primary_weight") == 0
        register(
            name,
            about,
            build,
            tunes_primary_weight=not (no_effect or is_ratio or is_zero),
            trains_head=settings.get("trains_head", True),
            translates=translates,
        )
        return function

    return add


@formula(
    "replay",
    "mix primary (share strategy.ratio) and auxiliary examples in one loss",
    replay=True,
)
@formula(
    "channel",
    "learn from auxiliary labels by what they mean for the primary classes, as your labels tell",
    translates=True,
)
@formula(
    "multitask",
    "add the two losses: the strongest simple baseline once its weights are tuned",
)
@formula(
    "pretrain_as_released",
    "pretrain as in the paper's release: the primary head is not trained, "
    "and yet its validation loss chooses the model",
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
    """Return a: the plain sum of the weighted gradients."""
    return auxiliary


@formula(
    "cosine_gate",
    f"{_GATE} its cosine with the primary gradient is >= 0",
)
def _gate(_: Mixed, primary: Tensor, auxiliary: Tensor) -> Tensor:
    """Return a if cos(p, a) ≥ 0, else 0."""
    return (_cosine(primary, auxiliary) >= 0) * auxiliary


@formula(
    "cosine_weighted",
    f"{_DU}: weight the auxiliary gradient by max(0, its cosine with the primary gradient)",
)
def _weighted_gate(_: Mixed, primary: Tensor, auxiliary: Tensor) -> Tensor:
    """Return max(0, cos(p, a)) a."""
    return _cosine(primary, auxiliary).clamp(min=0) * auxiliary


@formula(
    "bloop",
    f"{_BLOOP} its part along a running mean of the primary gradient",
)
def _bloop(strategy: Mixed, primary: Tensor, auxiliary: Tensor) -> Tensor:
    """Return a - m ⟨m, a⟩ / ⟨m, m⟩ with the running mean m ← decay m + (1 - decay) p."""
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
        """Make the aggregator `kind` of TorchJD with its `arguments`, for the strategy `name`.

        `weights` are those of the auxiliary sources.
        """
        aggregation = optional("torchjd.aggregation", "torchjd", f"strategy {name!r}", "torchjd")
        try:
            self.aggregator = getattr(aggregation, kind)(**arguments)
        except (ImportError, AttributeError) as error:
            reason = f"TorchJD cannot provide {kind} here: {one_line(error)}"
            raise InputError(f"strategy {name!r}: {reason}") from None
        self.model = model
        self.weights = weights
        self.resumable = resumable

    def step(self, losses: StepLosses) -> Telemetry:
        """Write the aggregate of the task gradients, a tasks x parameters matrix."""
        import torch

        share = 1 / len(losses.micro)
        parts = (self._rows(part, share) for part in losses.micro)
        shared, rows = task_gradients(self.model, parts)
        matrix = torch.stack(rows)
        try:
            update = self.aggregator(matrix)
        # NashMTL's solver fails where all gradients are zero, as with model.head_init: zero.
        except ValueError:
            if matrix.any():
                raise
            update = matrix[0]  # zeros
        write(update, shared)
        return dict

    def _rows(self, losses: StepLosses, share: float) -> list[Tensor]:
        """Return the losses of one micro-batch, the primary task's first; auxiliary losses have
        their weights.

        `share` is the micro-batch's part of the step.
        """
        tasks = []
        for name, loss in losses.auxiliary().items():
            tasks.append(loss * (self.weights[name] * share))
        return [losses.primary().mean() * share, *tasks]


def _symmetric(name: str, kind: str, *, resumable: bool = True, **arguments: Any) -> None:
    """Register the aggregator `kind` of TorchJD as the strategy `name`.

    `arguments` are those of its constructor that have no default. A function among them is called
    with the weights of the auxiliary sources, and its result is the argument.
    """

    def build(
        config: StrategyConfig, model: nn.Module, weights: Mapping[str, float], _seed: int
    ) -> Strategy:
        settings = dict(arguments)
        for key, value in arguments.items():
            if callable(value):
                settings[key] = value(weights)
        return Symmetric(config.name, kind, settings, model, weights, resumable=resumable)

    about = f"{kind} of TorchJD, a baseline that treats all tasks alike (needs the extra torchjd)"
    register(name, about, build)


_symmetric("torchjd_pcgrad", "PCGrad")
_symmetric("torchjd_gradvac", "GradVac", resumable=False)  # TorchJD offers no access to its state
_symmetric("torchjd_cagrad", "CAGrad", c=0.4)  # the value from its paper
_symmetric("torchjd_mgda", "MGDA")
_symmetric("torchjd_upgrad", "UPGrad")
_symmetric("torchjd_nashmtl", "NashMTL", resumable=False, n_tasks=lambda weights: len(weights) + 1)
_symmetric("torchjd_imtl_g", "IMTLG")
_symmetric("torchjd_aligned_mtl", "AlignedMTL")
_symmetric("torchjd_config", "ConFIG")
