"""The interface of a strategy: the losses that it may ask for, its declarations, and the registry.

A strategy fills `.grad`, no more. It asks `StepLosses` for the losses that it needs, so that
`primary_only` does not pay for auxiliary forward passes. Nothing here imports torch:
`attittud train --help` lists the strategies without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from attittud_lab.errors import unknown

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attittud_lab.config.schema import PhaseConfig, StrategyConfig

AnyStrategy = TypeVar("AnyStrategy", bound="StrategyConfig")
Telemetry = Callable[[], Mapping[str, float]]
"""Reads the figures of a step and so waits for the device; called only for logged steps."""


class StepLosses(Protocol):
    """The losses of one step, or of one micro-batch, computed when asked for."""

    @property
    def micro(self) -> Sequence[StepLosses]:
        """The micro-batches of the step; without accumulation the step itself."""

    def primary(self, *, detach: bool = False, count: int | None = None) -> Tensor:
        """Return per-example primary losses, a vector.

        `detach` trains the head alone. `count` takes only so many examples from the beginning.
        """

    def auxiliary(self) -> dict[str, Tensor]:
        """Mean loss of each auxiliary source."""

    @property
    def auxiliary_examples(self) -> int:
        """How many auxiliary examples there are."""

    def basis(self) -> Tensor:
        """Per-example primary losses of other examples (strategy.basis_batch of them)."""

    def judge(self) -> Tensor:
        """Return per-example losses of held-out primary examples.

        Only strategies that declare `uses_held_out` may ask for them.
        """


@dataclass(frozen=True)
class StepKind:
    """What a step does in addition to a plain step.

    All steps of one kind do the same work on the device.
    """

    refresh: bool = False
    judge: bool = False
    """Whether held-out examples are evaluated."""

    def __str__(self) -> str:
        extras = []
        if self.refresh:
            extras.append("a refresh")
        if self.judge:
            extras.append("held-out examples")
        if not extras:
            return "step"
        return f"step with {' and '.join(extras)}"


class Strategy(ABC):
    """One way to fill `.grad`.

    Its attributes declare what it needs and what may be done with it.
    """

    needs_auxiliary: bool = True
    needs_shared: bool = False
    """Whether it needs tasks that share a trained parameter."""
    uses_held_out: bool = False
    """Whether it asks for `judge()`, the losses of validation examples."""
    trains_head: bool = True
    """Whether the primary head is trained.

    If not, its accuracy means nothing, and the loss chooses the model.
    """
    resumable: bool = True
    """Whether `state_dict` is complete; if not, an interrupted phase starts over."""

    @abstractmethod
    def step(self, losses: StepLosses) -> Telemetry:
        """Fill `.grad`."""

    # Most strategies have nothing to do in the empty methods below.

    def check_batches(self, phase: str, settings: PhaseConfig) -> None:  # noqa: B027
        """Refuse batch sizes of a phase with which no step is possible."""

    def kind(self) -> StepKind | None:
        """The kind of the next step; None if it cannot be captured as a CUDA graph."""
        return None

    def replayed(self, kind: StepKind) -> None:  # noqa: B027
        """Count a captured step of this kind, which was repeated instead of a call of `step`."""

    def layers(self, losses: StepLosses) -> dict[str, float]:
        """Figures by layer, for occasional use: they may need extra forward passes."""
        return {}

    def remark(self) -> str | None:
        """Return what a person should know at the end of a phase; None if there is nothing.

        It may wait for the device.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Values that JSON can hold, and tensors: all that a resumed run needs."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Continue from a `state_dict`. A state that does not fit raises ValueError."""


Build = Callable[["StrategyConfig", "nn.Module", Mapping[str, float], int], Strategy]
"""Makes a strategy from its settings, the model, the weights of the sources by name, and a seed."""


@dataclass(frozen=True)
class Entry:
    """A registered strategy, with what must be known before it is built."""

    about: str
    build: Build
    inherits: tuple[str, ...] = ()
    """Settings that an entry of compare.strategies takes from `strategy:` unless it names them."""
    tunes_primary_weight: bool = True
    """Whether a comparison may tune strategy.primary_weight."""
    trains_head: bool = True
    """The strategy's own `trains_head`, for tables of results that do not build it."""
    translates: bool = False
    """Whether auxiliary labels are translated by label channels before its first step."""
    trains_others: bool = False
    """Whether it has no update itself, but trains other strategies on folds of the labels."""


_ENTRIES: dict[str, Entry] = {}


def register(name: str, about: str, build: Build, **declared: Any) -> None:
    """Add a strategy.

    `about` is its line in `--help`. `build` is often its class. See `Entry` for the rest.
    """
    if name in _ENTRIES:
        raise ValueError(f"there is a strategy {name!r} already; choose another name")
    _ENTRIES[name] = Entry(about, build, **declared)


def names() -> dict[str, str]:
    """Return every strategy with one line about it."""
    return {name: entry.about for name, entry in _ENTRIES.items()}


def find(name: str) -> Entry:
    """Return the entry of a name; the error for an unknown name offers the nearest one."""
    if name not in _ENTRIES:
        raise unknown("strategy", name, _ENTRIES)
    return _ENTRIES[name]


def completed(entry: AnyStrategy, common: StrategyConfig) -> AnyStrategy:
    """Return an entry of compare.strategies with settings that it inherits from `strategy:`.

    A setting is inherited from `common` if the strategy allows it (`Entry.inherits`) and the entry
    neither names it nor has another value than the default.
    """
    default = type(entry)()
    inherited = {}
    for name in find(entry.name).inherits:
        if name not in entry.given and getattr(entry, name) == getattr(default, name):
            inherited[name] = getattr(common, name)
    if not inherited:
        return entry
    return replace(entry, **inherited)


def make_strategy(
    config: StrategyConfig,
    model: nn.Module,
    *,
    weights: Mapping[str, float],
    seed: int,
) -> Strategy:
    """Return the strategy that a configuration names.

    `weights` are the weights of the auxiliary sources, by name.
    """
    scaled = {source: weight * config.auxiliary_weight for source, weight in weights.items()}
    return find(config.name).build(config, model, scaled, seed)
