"""The name of the portfolio; the room `attittud_lab.portfolio` trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attittud_lab.errors import InputError
from attittud_lab.strategies.base import Strategy, register

if TYPE_CHECKING:
    from attittud_lab.config.schema import StrategyConfig


def _refuse(config: StrategyConfig, *_: object) -> Strategy:
    """Say where the portfolio is trained, to a caller that wants its update."""
    reason = "tries several learners and chooses among them, so it has no update of its own"
    advice = "use `attittud train` (in Python attittud_lab.portfolio.run.run)"
    raise InputError(f"strategy: {config.name} {reason}; {advice}, or name another strategy here")


_ABOUT = "try simple learners, and networks if they are named, on folds of the labels"
register(
    "portfolio",
    f"{_ABOUT}; make a model of the best",
    _refuse,
    trains_others=True,
)
