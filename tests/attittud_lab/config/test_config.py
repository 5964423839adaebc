"""Defaults that `--help` names."""

from attittud_lab.commands.compare import QUICK_STRATEGIES
from attittud_lab.config import COMPARED
from attittud_lab.config.load import loads
from attittud_lab.strategies import names


def test_the_strategies_of_a_comparison_are_the_default_of_the_schema() -> None:
    assert tuple(one.name for one in loads("").compare.strategies) == COMPARED
    assert set(QUICK_STRATEGIES) < set(COMPARED) < set(names())
