"""The search of a comparison: as many draws for every strategy, the same for all, and each the settings of its run."""

import json
from typing import Any

import pytest

from attittud_lab.compare.candidates import Budget, candidates, job, variants
from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config, StrategyConfig
from attittud_lab.data.prepare import split_seed
from attittud_lab.errors import InputError

SPACE = {
    "training.guided.lr": ["1e-3", "1e-4"],
    "strategy.primary_weight": ["0.01", "0.1", "1"],
    "model.dropout": ["0", "0.3"],
}


def tried(strategy: StrategyConfig, **settings: Any) -> list[tuple[str, ...]]:
    config = loads(json.dumps({"compare": {"space": SPACE, "weights": [1], **settings}}))
    return [variant.changes for variant in variants(strategy, config.compare, tuned=True)]


def test_every_strategy_has_the_same_number_of_draws() -> None:
    multitask, pcgrad, pretrain = (tried(StrategyConfig(name=name)) for name in ("multitask", "pcgrad", "pretrain"))
    assert multitask == pcgrad and len(set(multitask)) == len(set(pretrain)) == 4
    assert multitask[0] == ("training.guided.lr=1e-3", "strategy.primary_weight=0.01", "model.dropout=0")
    # Its primary weight is what makes it what it is.
    assert pretrain[0] == ("training.guided.lr=1e-3", "model.dropout=0")
    assert tried(StrategyConfig(name="flip", primary_weight=0.0)) == pretrain
    assert len(tried(StrategyConfig(name="flip"), draws=100)) == 12
    assert len(tried(StrategyConfig(name="flip"), weights=[0.1, 1], draws=3)) == 6


def test_drawn_settings_are_those_of_the_run() -> None:
    config = loads(json.dumps({"compare": {"space": SPACE, "weights": [1]}, "data": {"auxiliary": {"x": "digits"}}}))
    candidate = next(c for c in candidates(config) if c.label == "multitask")
    for variant in variants(candidate.strategy, config.compare, tuned=True):
        made = job(config, candidate, variant, Budget(3, 2))
        values = dict(change.split("=") for change in variant.changes)
        assert made.training.guided.lr == float(values["training.guided.lr"]) and made.training.guided.steps == 3
        assert made.strategy.primary_weight == float(values["strategy.primary_weight"])
        assert made.model.dropout == float(values["model.dropout"])


@pytest.mark.parametrize("path", ["data.primary.train", "training.guided.steps", "seed"])
def test_what_all_runs_share_cannot_be_drawn(path: str) -> None:
    with pytest.raises(InputError, match=f"compare.space: {path} cannot be tuned"):
        loads(json.dumps({"compare": {"space": {path: ["1", "2"]}}}))


def test_subsets_take_turns() -> None:
    config = Config().data
    assert [split_seed(config, seed) for seed in range(3)] == [0, 0, 0]
    config = loads("data: {subsets: 3, seed: 5}").data
    assert [split_seed(config, seed) for seed in range(5)] == [5, 6, 7, 5, 6]
    with pytest.raises(InputError, match="leave one of them out"):
        loads("data: {subsets: 3, seed: null}")
