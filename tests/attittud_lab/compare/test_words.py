"""Sentences of a comparison: what is added where, and commands in them that the command line
accepts.
"""

import re
from pathlib import Path

import pytest

from attittud_lab.compare.run import Comparison
from attittud_lab.compare.words import few_examples, slow_runs, ways_to_shorten
from tests.helpers.comparisons import config
from tests.helpers.jobs import Seen


@pytest.mark.parametrize(("count", "points"), [(24, "4.2 points"), (99, "1.0 points"), (100, "")])
def test_small_test_sets_are_warned_of(count: int, points: str) -> None:
    warning = few_examples(count, "accuracy")
    assert bool(warning) == bool(points) and points in warning
    assert bool(few_examples(count, "auc")) == bool(points) and "points" not in few_examples(
        count, "auc"
    )


def test_ways_to_shorten_can_be_typed() -> None:
    every = ways_to_shorten(quick=True, seeds=3, strategies=True, workers=True)
    strategies = re.search(r"'(compare\.strategies=\S+)'", every)
    assert strategies and [one.name for one in config(strategies[1]).compare.strategies] == ["auto"]
    for way in ("--quick", "compare.seeds=3", "--workers 2"):
        assert way in every
    assert ways_to_shorten(quick=False, seeds=None, strategies=False, workers=False) == ""


@pytest.mark.parametrize(
    ("settings", "ways"),
    [
        (["compare.seeds=4"], {"--quick", "compare.seeds=3", "--workers 2"}),
        (["compare.strategies=[flip, pcgrad]"], {"--quick", "compare.strategies", "--workers 2"}),
        # --quick would be refused with a budget.
        (
            ["compare.seeds=5", "compare.tuning_seeds=4", "compare.budget=30s"],
            {"compare.seeds=4", "--workers 2"},
        ),
    ],
)
def test_only_possible_ways_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], ways: set[str]
) -> None:
    comparison = Comparison(config(*settings), tmp_path, Seen())
    monkeypatch.setattr(comparison, "_measure", lambda *_: None)
    text = comparison._forecast(comparison.configured_budget())._plan.shorter
    every = {"--quick", "compare.seeds=3", "compare.seeds=4", "compare.strategies", "--workers 2"}
    assert {way for way in every if way in text} == ways


def test_slow_runs_are_counted_and_named() -> None:
    runs = {f"there/{number}": 3.0 for number in range(9)}
    assert "there/2 (3.0×) and 6 more" in slow_runs(runs, ["equal seconds"], several=False)
    assert "there" not in slow_runs(
        runs, [], several=False
    )  # nothing but the costs depends on time
    assert "there" not in slow_runs(runs, ["equal seconds"], several=True)
    assert slow_runs({}, ["equal seconds"], several=False) == ""
