"""Strategies by name: how the gradients of the primary and the auxiliary tasks become one update.

A strategy fills `.grad`, no more. It asks `StepLosses` for the losses that it needs, so that `primary_only` does not
pay for auxiliary forward passes. What it returns is read only when a step is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from attittud.engine.base import UnsupportedError
from attittud.eta import Eta, choose, preset, presets
from attittud.guide import Guide
from attittud.report import Report
from attittud_lab.config.schema import StrategyConfig
from attittud_lab.errors import InputError
from attittud_lab.models.patterns import matches
from attittud_lab.strategies.layers import layer_norms
from attittud_lab.strategies.mixing import MIXERS, Mixed
from attittud_lab.strategies.symmetric import SYMMETRIC, Symmetric
from attittud_lab.training.capture import StepKind

Telemetry = Callable[[], Mapping[str, float]]
"""Reads the figures of a step, which waits for the device."""


class MicroLosses(Protocol):
    """The losses of a step, or of an equal part of it, computed when asked for."""

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        """Per-example primary losses (a vector); `detach` trains the head alone, `count` takes only the first ones."""

    def auxiliary(self) -> dict[str, Tensor]:
        """Mean loss of each auxiliary source."""

    @property
    def auxiliary_examples(self) -> int:
        """How many auxiliary examples there are."""


class StepLosses(MicroLosses, Protocol):
    """The losses of one step."""

    @property
    def micro(self) -> Sequence[MicroLosses]:
        """The micro-batches that the step is taken in; without accumulation the step itself."""

    def basis(self) -> Tensor:
        """Per-example primary losses of other examples (strategy.basis_batch of them)."""

    @property
    def judging(self) -> bool:
        """Whether there are judges."""

    def judge(self) -> Tensor:
        """Per-example losses of primary examples that have not been trained on."""


class Strategy(Protocol):
    """One way to fill `.grad`."""

    needs_auxiliary: bool
    resumable: bool
    """Whether `state_dict` holds all; if not, an interrupted phase starts over."""

    def step(self, losses: StepLosses) -> Telemetry: ...

    def kind(self) -> StepKind | None:
        """What the next step is, all steps of a kind being the same work on the device; None if it cannot be captured."""

    def replayed(self, kind: StepKind) -> None:
        """A captured step of this kind was repeated on the device in place of a call of `step`."""

    def state_dict(self) -> dict[str, Any]:
        """JSON-able values and tensors: all that a resumed run needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Guided:
    """Every Eta, preset and basis: the step is a `Guide`'s."""

    needs_auxiliary = True
    resumable = True

    def __init__(self, model: nn.Module, arguments: dict[str, Any], *, own_basis_batch: bool) -> None:
        try:
            self.guide = Guide(model, **arguments)
        except ValueError as error:  # settings that do not go together, or an engine that does not exist
            raise InputError(f"strategy: {error}") from None
        self.own_basis_batch = own_basis_batch
        self.engine = str(arguments["engine"])

    def step(self, losses: StepLosses) -> Telemetry:
        try:
            report = self._backward(losses) if len(losses.micro) == 1 else self._accumulated(losses)
        except UnsupportedError as error:
            raise InputError(f"strategy.engine={self.engine} cannot be used with this model: {error}") from None
        return report.to_dict

    # Two engines have to see the forward pass that the basis comes from.

    def _backward(self, losses: StepLosses) -> Report:
        return self.guide.backward(
            losses.primary if self.engine in ("hooks", "implicit") else losses.primary(),
            losses.auxiliary(),
            basis_losses=losses.basis if self.own_basis_batch else None,
            judge=losses.judge if self.guide.eta == "auto" and losses.judging else None,
        )

    def _accumulated(self, losses: StepLosses) -> Report:
        guide, parts = self.guide, losses.micro

        def primary(part: MicroLosses) -> Tensor:
            return part.primary() / len(parts)

        for number, part in enumerate(parts):
            guide.primary(
                partial(primary, part) if self.engine in ("hooks", "implicit") else primary(part),
                basis_losses=losses.basis if self.own_basis_batch and number == 0 else None,
            )
        if guide.eta == "auto" and losses.judging:
            guide.judge(losses.judge)
        for part in parts:
            guide.auxiliary({name: loss / len(parts) for name, loss in part.auxiliary().items()})
        return guide.combine()

    def kind(self) -> StepKind | None:
        if self.guide.basis.keeps_graph:
            return None
        return StepKind(refresh=self.guide.refresh_due, hearing=self.guide.judge_due)

    def replayed(self, kind: StepKind) -> None:
        self.guide.replayed(refresh=kind.refresh, judge=kind.hearing)

    def layers(self, losses: StepLosses) -> dict[str, float]:
        """Norms of the three parts by layer; passes of its own, so for now and then. Of a step in parts the first one."""
        return {f"layers/{name}": value for name, value in layer_norms(self.guide, losses.micro[0]).items()}

    def state_dict(self) -> dict[str, Any]:
        return self.guide.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.guide.load_state_dict(state)


def names() -> dict[str, str]:
    """Every strategy with one line about it."""
    return {
        **_GUIDED,
        **{name: mixer.about for name, mixer in MIXERS.items()},
        **SYMMETRIC,
        "custom": "your own strategy.eta",
    }


AUTO = "auto"
_GUIDED = {
    AUTO: "every part earns its weight before judges, validation examples: no weights to choose",
    "drop_harmful": "Eta(1, 1, 0): drop the part that opposes the primary gradient",
    "flip": "Eta(1, 1, -1): reverse that part",
    "orthogonal": "Eta(1, 0, 0): keep only what the primary task is indifferent to",
    "orthogonal_flip": "Eta(1, 0, -1): the same, with the harmful part reversed",
    "helpful_only": "Eta(0, 1, 0): keep only what agrees with the primary task",
    "pcgrad": "one-sided PCGrad: drop harm against the current mean primary gradient",
}


def check_name(name: str) -> None:
    """Refuse what is no strategy."""
    try:
        choose("strategy", name, names())
    except ValueError as error:
        raise InputError(str(error)) from None


def make_strategy(config: StrategyConfig, model: nn.Module, *, weights: Mapping[str, float], seed: int) -> Strategy:
    """The strategy that a configuration names. `weights` are those of the auxiliary sources, by name."""
    name = config.name
    scaled = {source: weight * config.auxiliary_weight for source, weight in weights.items()}
    check_name(name)
    if name in MIXERS and config.eta is None and config.basis is None:
        return Mixed(MIXERS[name], model, config, scaled)
    if name in SYMMETRIC:
        return Symmetric(name, model, scaled)
    return Guided(model, guide_arguments(config, scaled, seed), own_basis_batch=config.basis_batch is not None)


def guide_arguments(config: StrategyConfig, weights: Mapping[str, float], seed: int) -> dict[str, Any]:
    """Keyword arguments of the `Guide` of a preset or custom strategy."""
    arguments: dict[str, Any] = preset(config.name) if config.name in presets() else {}
    if config.name == AUTO:
        arguments = {"eta": AUTO, "judge_every": config.judge_every}
        if config.eta is not None:
            raise InputError(
                "strategy.eta: strategy auto finds the weights itself; leave them out, or use name: custom"
            )
    if config.eta is not None:
        arguments["eta"] = Eta(config.eta.neutral, config.eta.helpful, config.eta.harmful)
    if "eta" not in arguments:
        raise InputError(
            f"strategy {config.name!r} needs its three weights, for example "
            "strategy: {name: custom, eta: {neutral: 1, helpful: 1, harmful: -1}}"
        )
    for key in ("primary_weight", "basis", "refresh_every"):
        if getattr(config, key) is not None:
            arguments[key] = getattr(config, key)
    if config.exclude:
        arguments["parameters"] = lambda name, _: not matches(name, config.exclude)
    return {
        **arguments,
        "rank": config.rank,
        "include_mean": config.include_mean,
        "engine": config.engine,
        "auxiliary_weight": dict(weights),
        "seed": seed,
    }
