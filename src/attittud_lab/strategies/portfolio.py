"""The name of the portfolio; the room `attittud_lab.portfolio` trains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attittud_lab.errors import InputError
from attittud_lab.strategies.base import Strategy, register

if TYPE_CHECKING:
    from attittud_lab.config.schema import StrategyConfig


def _refuse(config: StrategyConfig, *_: object) -> Strategy:
    raise InputError(
        f"strategy: {config.name} trains several strategies and chooses among them, so it has no update of its own; use "
        "`attittud train` (in Python attittud_lab.portfolio.run.run), or name another strategy here"
    )


register(
    "portfolio",
    "try several strategies on folds of the labels, stop the losers early, and train the best on all labels",
    _refuse,
    trains_others=True,
)
