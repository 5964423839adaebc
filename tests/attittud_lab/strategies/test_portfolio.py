"""The name of the portfolio is known, but it is no update of its own."""

import pytest
from torch import nn

from attittud_lab.config.schema import StrategyConfig
from attittud_lab.errors import InputError
from attittud_lab.strategies import find, make_strategy, names


def test_portfolio_is_refused_as_an_update() -> None:
    assert "portfolio" in names() and find("portfolio").trains_others
    assert [name for name in names() if find(name).trains_others] == ["portfolio"]
    with pytest.raises(InputError, match=r"portfolio trains several strategies.*attittud train"):
        make_strategy(StrategyConfig(name="portfolio"), nn.Linear(1, 1), weights={}, seed=0)
