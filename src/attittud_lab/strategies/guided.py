"""Strategies that use a `Guide`: presets of Eta, custom weights, and weights chosen by `auto`.

torch and the library are imported when a strategy is built, so that names of strategies can be
listed without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attittud_lab.errors import InputError
from attittud_lab.strategies.base import StepKind, StepLosses, Strategy, Telemetry, register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attittud import Guide, Report
    from attittud_lab.config.schema import PhaseConfig, StrategyConfig

SETTINGS = ("rank", "engine", "exclude", "refresh_every", "basis_batch")
"""Settings that strategies of a comparison share unless they set their own."""
PARTS = ("helpful", "harmful", "neutral")
MOST_GROUPS = 24
"""The most rows of a picture of layers; more are grouped by the modules that contain them."""


class Guided(Strategy):
    """A strategy in which a `Guide` makes the step: every Eta, preset and basis."""

    needs_shared = True

    def __init__(
        self,
        config: StrategyConfig,
        model: nn.Module,
        weights: Mapping[str, float],
        seed: int,
        **guide_arguments: Any,
    ) -> None:
        """Make the guide from the settings of the strategy.

        `weights` are the weights of the auxiliary sources. `guide_arguments`, if given, replace the
        preset that has the name of the strategy.
        """
        from attittud import Guide

        arguments = _guide_arguments(config, weights, seed, guide_arguments)
        try:
            self.guide = Guide(model, **arguments)
        # Settings that do not go together, or an engine that does not exist.
        except ValueError as error:
            raise InputError(f"strategy: {error}") from None
        self.config = config
        self._watches = self.guide.engine.needs_forward
        """Whether the engine must see the forward pass of the primary losses."""

    def check_batches(self, phase: str, settings: PhaseConfig) -> None:
        """Refuse batches from which the basis cannot be built.

        A basis from the per-example Jacobian needs two examples. Without a batch of its own, a step
        of several micro-batches needs a basis that adds up over them.
        """
        basis = self.guide.basis
        basis_batch = self.config.basis_batch
        examples = basis_batch or settings.primary_batch
        if basis.needs == "jacobian" and examples < 2:
            raise InputError(
                f"training.{phase}.primary_batch is {examples}, but a basis needs at least 2 "
                "primary examples; raise it, or set strategy.basis_batch"
            )
        if settings.accumulate > 1 and basis_batch is None and not basis.adds_up:
            raise InputError(
                f"training.{phase}.accumulate: basis {basis.name} cannot be built from "
                f"{settings.accumulate} micro-batches; set strategy.basis_batch, or use "
                "basis: sketch"
            )

    def step(self, losses: StepLosses) -> Telemetry:
        """Make one step of the guide; errors about settings become input errors."""
        from attittud import UnsupportedError

        try:
            if len(losses.micro) == 1:
                report = self._backward(losses)
            else:
                report = self._accumulated(losses)
        except UnsupportedError as error:
            engine = f"strategy.engine={self.config.engine}"
            raise InputError(f"{engine} cannot be used with this model: {error}") from None
        return report.to_dict

    def _backward(self, losses: StepLosses) -> Report:
        """Make a step of a single batch."""
        return self.guide.backward(
            self._primary(losses.primary),
            losses.auxiliary(),
            basis_losses=self._basis_losses(losses),
            judge=losses.judge if self.uses_held_out else None,
        )

    def _accumulated(self, losses: StepLosses) -> Report:
        """Make a step of micro-batches: every loss is divided by their number."""
        guide = self.guide
        parts = losses.micro
        count = len(parts)
        # Examples of the basis are drawn once for the whole step.
        basis_losses = self._basis_losses(losses)
        for part in parts:
            primary = self._primary(partial(_divided_primary, part, count))
            guide.primary(primary, basis_losses=basis_losses)
            basis_losses = None
        if self.uses_held_out:
            guide.judge(losses.judge)
        for part in parts:
            guide.auxiliary({name: loss / count for name, loss in part.auxiliary().items()})
        return guide.combine()

    def _primary(self, compute: Callable[[], Tensor]) -> Tensor | Callable[[], Tensor]:
        """Return the primary losses, or the function itself to an engine that must see it run."""
        if self._watches:
            return compute
        return compute()

    def _basis_losses(self, losses: StepLosses) -> Callable[[], Tensor] | None:
        """Return what computes the losses of the basis; None if it has no batch of its own."""
        if self.config.basis_batch is None:
            return None
        return losses.basis

    def kind(self) -> StepKind | None:
        return StepKind(refresh=self.guide.refresh_due, judge=self.guide.judge_due)

    def replayed(self, kind: StepKind) -> None:
        self.guide.replayed(refresh=kind.refresh, judge=kind.judge)

    def layers(self, losses: StepLosses) -> dict[str, float]:
        """Return norms of the three parts by layer, from the first micro-batch of a step."""
        norms = layer_norms(self.guide, losses.micro[0])
        return {f"layers/{name}": value for name, value in norms.items()}

    def state_dict(self) -> dict[str, Any]:
        return self.guide.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.guide.load_state_dict(state)


def _divided_primary(part: StepLosses, count: int) -> Tensor:
    """Return the primary losses of one of `count` micro-batches, divided by their number."""
    return part.primary() / count


class AutoGuided(Guided):
    """Weights that held-out primary examples choose while the model is trained."""

    uses_held_out = True

    def __init__(
        self, config: StrategyConfig, model: nn.Module, weights: Mapping[str, float], seed: int
    ) -> None:
        if config.eta is not None:
            problem = "strategy.eta: strategy auto finds the weights itself"
            raise InputError(f"{problem}; leave them out, or use name: custom")
        super().__init__(config, model, weights, seed, eta="auto", judge_every=config.judge_every)

    def remark(self) -> str | None:
        """Return a sentence if the weight of every part of every source is 0 at the end."""
        records = self.guide.state_dict(include_basis=False)["judges"]["records"]
        some_part_counts = any(any(record["weights"]) for record in records.values())
        if some_part_counts:
            return None
        return (
            "strategy auto ended with weight 0 for every auxiliary part, so the last guided steps "
            "used the primary data alone: at the end the validation examples gave no sign that the "
            "auxiliary data help. If you expect that they do, compare with other strategies "
            "(`attittud compare`)"
        )


_AUTO = "held-out primary examples (of the validation set) choose the weight of every part"
register("auto", _AUTO, AutoGuided, inherits=SETTINGS)
_ORTHOGONAL = "Eta(1, 0, 0): keep only the neutral part"
for _name, _about in {
    "drop_harmful": "Eta(1, 1, 0): drop the part that opposes the primary gradient",
    "flip": "Eta(1, 1, -1): reverse the part that opposes the primary gradient",
    "orthogonal": f"{_ORTHOGONAL}, about which the primary examples say nothing",
    "orthogonal_flip": "Eta(1, 0, -1): keep the neutral part and reverse the harmful part",
    "helpful_only": "Eta(0, 1, 0): keep only the part that agrees with the primary gradient",
    "custom": "your own strategy.eta",
}.items():
    register(_name, _about, Guided, inherits=SETTINGS)
_PCGRAD = "one-sided PCGrad: drop what opposes the current mean primary gradient"
# It refreshes in every step, from the batch of that step, so it has no use for the other settings.
register("pcgrad", _PCGRAD, Guided, inherits=("rank", "engine", "exclude"))


def _guide_arguments(
    config: StrategyConfig,
    weights: Mapping[str, float],
    seed: int,
    instead_of_preset: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the keyword arguments of a `Guide`; refuses a strategy without an Eta.

    They begin with `instead_of_preset` or, if this is empty, with the preset that has the name of
    the strategy. The settings of `config` come on top. `weights` are the weights of the auxiliary
    sources.
    """
    from attittud import Eta, preset, presets
    from attittud_lab.models.parameters import matches

    arguments = dict(instead_of_preset)
    if not arguments and config.name in presets():
        arguments = dict(preset(config.name))
    if config.eta is not None:
        arguments["eta"] = Eta(config.eta.neutral, config.eta.helpful, config.eta.harmful)
    if "eta" not in arguments:
        example = "strategy: {name: custom, eta: {neutral: 1, helpful: 1, harmful: -1}}"
        raise InputError(f"strategy {config.name!r} needs its three weights, for example {example}")
    for key in ("primary_weight", "basis", "refresh_every"):
        if getattr(config, key) is not None:
            arguments[key] = getattr(config, key)
    if config.exclude:
        arguments["parameters"] = lambda name, _: not matches(name, config.exclude)
    arguments |= {"rank": config.rank, "include_mean": config.include_mean, "engine": config.engine}
    return arguments | {"auxiliary_weight": dict(weights), "seed": seed}


def layer_norms(guide: Guide, losses: StepLosses) -> dict[str, float]:
    """Return norms by "group/part", over all auxiliary sources; empty if there is no basis yet.

    The norm of a part is √(Σ ‖part of source s in the group‖²). The losses are computed once more,
    without dropout and without a trace in buffers, random states or `.grad`.
    """
    import torch

    from attittud import isolated_forward

    space = guide.subspace
    if space is None:
        return {}
    with isolated_forward(guide.model, guide.batch_norm, seed=0), torch.enable_grad():
        primary = space.gradient(losses.primary().mean())
        # One source after the other: a single auxiliary gradient is held at a time.
        squares = []
        for loss in losses.auxiliary().values():
            auxiliary = space.gradient(loss)
            squares.append(space.squares(primary, auxiliary, include_mean=guide.include_mean))
    names = space.layout.names
    by_parameter = dict(zip(names, torch.stack(squares).sum(0).tolist(), strict=True))
    sums: dict[str, float] = {}
    for name, group in groups(names).items():
        for part, square in zip(PARTS, by_parameter[name], strict=True):
            key = f"{group}/{part}"
            sums[key] = sums.get(key, 0.0) + square
    return {name: square**0.5 for name, square in sums.items()}


def groups(names: Sequence[str]) -> Mapping[str, str]:
    """Return the group of each parameter by its name.

    A group is the module of the parameter, or a module further out: all names are cut to the largest
    depth at which there are at most `MOST_GROUPS` groups, or else to a depth of 1.
    """
    # The path of each parameter's module; a parameter of the model itself is its own group.
    modules = {name: name.split(".")[:-1] or [name] for name in names}
    deepest = max(map(len, modules.values()), default=1)
    for depth in range(deepest, 0, -1):
        group_of = {name: ".".join(module[:depth]) for name, module in modules.items()}
        if len(set(group_of.values())) <= MOST_GROUPS:
            break
    return group_of
