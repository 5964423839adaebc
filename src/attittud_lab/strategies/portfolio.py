"""The name of the portfolio; the room `attittud_lab.portfolio` trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attittud_lab.errors import InputError
from attittud_lab.strategies.base import Strategy, register

if TYPE_CHECKING:
    from attittud_lab.config.schema import StrategyConfig


def _refuse(config: StrategyConfig, *_: object) -> Strategy:
    reason = "trains several strategies and chooses among them, so it has no update of its own"
    cure = "use `attittud train` (in Python attittud_lab.portfolio.run.run)"
    raise InputError(f"strategy: {config.name} {reason}; {cure}, or name another strategy here")


_ABOUT = "try several strategies on folds of the labels, stop the losers early"
register(
    "portfolio",
    f"{_ABOUT}, and train the best on all labels",
    _refuse,
    trains_others=True,
)
