"""Strategies that use a `Guide`: presets of Eta, custom weights, and weights that held-out examples choose.

torch and the library are imported when a strategy is built, so that names of strategies can be listed without them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
"""The most rows of a picture of layers; more layers are grouped by the modules that contain them."""


class Guided(Strategy):
    """A strategy in which a `Guide` makes the step: every Eta, preset and basis."""

    needs_shared = True

    def __init__(
        self, config: StrategyConfig, model: nn.Module, weights: Mapping[str, float], seed: int, **own: Any
    ) -> None:
        from attittud import Guide

        arguments = guide_arguments(config, weights, seed, own)
        try:
            with _unused_rank():
                self.guide = Guide(model, **arguments)
        except ValueError as error:  # settings that do not go together, or an engine that does not exist
            raise InputError(f"strategy: {error}") from None
        self.config = config
        # An engine that must see the forward pass of the basis gets a callable.
        self._watches = self.guide.engine.needs_forward

    def check_batches(self, phase: str, settings: PhaseConfig) -> None:
        basis, own_batch = self.guide.basis, self.config.basis_batch
        smallest = own_batch or settings.primary_batch
        if basis.needs == "jacobian" and smallest < 2:
            found = f"training.{phase}.primary_batch is {smallest}, but a basis needs at least 2 primary examples"
            raise InputError(f"{found}; raise it, or set strategy.basis_batch")
        if settings.accumulate > 1 and own_batch is None and not basis.adds_up:
            found = f"training.{phase}.accumulate: basis {basis.name} cannot be built from {settings.accumulate}"
            raise InputError(f"{found} micro-batches; set strategy.basis_batch, or use basis: sketch")

    def step(self, losses: StepLosses) -> Telemetry:
        from attittud import UnsupportedError

        try:
            report = self._backward(losses) if len(losses.micro) == 1 else self._accumulated(losses)
        except MemoryError as error:  # says which settings of a `Guide` fit
            raise InputError(f"strategy: {error}") from None
        except UnsupportedError as error:
            raise InputError(f"strategy.engine={self.config.engine} cannot be used with this model: {error}") from None
        return report.to_dict

    def _backward(self, losses: StepLosses) -> Report:
        return self.guide.backward(
            losses.primary if self._watches else losses.primary(),
            losses.auxiliary(),
            basis_losses=None if self.config.basis_batch is None else losses.basis,
            judge=losses.judge if self.uses_held_out else None,
        )

    def _accumulated(self, losses: StepLosses) -> Report:
        guide, parts = self.guide, losses.micro

        def primary(part: StepLosses) -> Tensor:
            return part.primary() / len(parts)

        for number, part in enumerate(parts):
            own_batch = self.config.basis_batch is not None and number == 0
            guide.primary(
                partial(primary, part) if self._watches else primary(part),
                basis_losses=losses.basis if own_batch else None,
            )
        if self.uses_held_out:
            guide.judge(losses.judge)
        for part in parts:
            guide.auxiliary({name: loss / len(parts) for name, loss in part.auxiliary().items()})
        return guide.combine()

    def kind(self) -> StepKind | None:
        return StepKind(refresh=self.guide.refresh_due, judge=self.guide.judge_due)

    def replayed(self, kind: StepKind) -> None:
        self.guide.replayed(refresh=kind.refresh, judge=kind.judge)

    def layers(self, losses: StepLosses) -> dict[str, float]:
        """Norms of the three parts by layer; where a step has micro-batches, from the first of them."""
        return {f"layers/{name}": value for name, value in layer_norms(self.guide, losses.micro[0]).items()}

    def state_dict(self) -> dict[str, Any]:
        return self.guide.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        judges = state.get("judges") or {}
        counts = [state[name] for name in ("since_refresh", "refreshes", "skipped_refreshes")]
        counts += [judges.get(name, 0) for name in ("age", "count")]
        if not all(type(count) is int and 0 <= count < 1 << 62 for count in counts):
            raise ValueError("a guide counts in whole numbers")
        self.guide.load_state_dict(state)


@contextmanager
def _unused_rank() -> Iterator[None]:
    """Silence the library's warning about an unused rank: strategies share one rank, which only some bases need."""
    logger = logging.getLogger("attittud")

    def others(record: logging.LogRecord) -> bool:
        return "rank=%d is not used" not in str(record.msg)

    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


class AutoGuided(Guided):
    """Weights that held-out primary examples choose while the model is trained."""

    uses_held_out = True

    def __init__(self, config: StrategyConfig, model: nn.Module, weights: Mapping[str, float], seed: int) -> None:
        if config.eta is not None:
            cure = "leave them out, or use name: custom"
            raise InputError(f"strategy.eta: strategy auto finds the weights itself; {cure}")
        super().__init__(config, model, weights, seed, eta="auto", judge_every=config.judge_every)

    def remark(self) -> str | None:
        judges = self.guide.state_dict(include_basis=False)["judges"]
        if any(weight for record in judges["records"].values() for weight in record["weights"]):
            return None
        return (
            "strategy auto ended with weight 0 for every auxiliary part, so the last guided steps used the primary data alone: "
            "at the end the validation examples gave no sign that the auxiliary data help. If you expect that they do, compare "
            "with other strategies (`attittud compare`)"
        )


_AUTO = "held-out primary examples (of the validation set) choose the weight of every part"
register("auto", _AUTO, AutoGuided, inherits=SETTINGS)
for _name, _about in {
    "drop_harmful": "Eta(1, 1, 0): drop the part that opposes the primary gradient",
    "flip": "Eta(1, 1, -1): reverse the part that opposes the primary gradient",
    "orthogonal": "Eta(1, 0, 0): keep only the neutral part, about which the primary examples say nothing",
    "orthogonal_flip": "Eta(1, 0, -1): keep the neutral part and reverse the harmful part",
    "helpful_only": "Eta(0, 1, 0): keep only the part that agrees with the primary gradient",
    "custom": "your own strategy.eta",
}.items():
    register(_name, _about, Guided, inherits=SETTINGS)
_PCGRAD = "one-sided PCGrad: drop what opposes the current mean primary gradient"
register("pcgrad", _PCGRAD, Guided, inherits=SETTINGS[:3])  # refreshed in every step, from the batch of that step


def guide_arguments(
    config: StrategyConfig, weights: Mapping[str, float], seed: int, own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Keyword arguments of a `Guide`; `own` are the strategy's arguments where it is not the preset of its name."""
    from attittud import Eta, preset, presets
    from attittud_lab.models.network import matches

    arguments = dict(own or (preset(config.name) if config.name in presets() else {}))
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
    """Return norms by "group/part", over all auxiliary sources, with the current basis; empty if there is none yet.

    The losses are computed once more, without dropout and without a trace in buffers, random states or `.grad`.
    """
    import torch

    from attittud import isolated_forward

    space = guide.subspace
    if space is None:
        return {}
    with isolated_forward(guide.model, guide.batch_norm, seed=0), torch.enable_grad():
        primary = space.gradient(losses.primary().mean())
        # One source after the other: a single auxiliary gradient is held at a time.
        found = [
            space.squares(primary, space.gradient(loss), include_mean=guide.include_mean)
            for loss in losses.auxiliary().values()
        ]
    by_parameter = dict(zip(space.layout.names, torch.stack(found).sum(0).tolist(), strict=True))
    sums: dict[str, float] = {}
    for name, group in groups(space.layout.names).items():
        for part, square in zip(PARTS, by_parameter[name], strict=True):
            sums[f"{group}/{part}"] = sums.get(f"{group}/{part}", 0.0) + square
    return {name: square**0.5 for name, square in sums.items()}


def groups(names: Sequence[str]) -> Mapping[str, str]:
    """The module of each parameter, shortened until there are at most `MOST_GROUPS` of them."""
    modules = {name: name.split(".")[:-1] or [name] for name in names}
    for depth in range(max(map(len, modules.values()), default=1), 0, -1):
        short = {name: ".".join(module[:depth]) for name, module in modules.items()}
        if len(set(short.values())) <= MOST_GROUPS:
            break
    return short
