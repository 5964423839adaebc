"""The strategies of a comparison: their settings, their budget, and as many draws for each."""

import json
from itertools import product
from pathlib import Path
from typing import Any

from attittud_lab.compare.candidates import (
    Budget,
    Candidate,
    Variant,
    candidates,
    job,
    run_dir,
    variants,
)
from attittud_lab.config.load import dump, loads
from attittud_lab.config.schema import StrategyConfig
from tests.helpers.comparisons import config


def test_unspecified_settings_come_from_the_configured_strategy():
    job = config(
        "strategy.refresh_every=4",
        "compare.strategies=[drop_harmful, {name: drop_harmful, rank: 7}, {name: flip, rank: 10}, pcgrad, bloop, flip]",
    )
    found = {candidate.label: candidate.strategy for candidate in candidates(job)}
    assert list(found) == [
        "primary_only",
        "multitask",
        "flip",
        "drop_harmful",
        "drop_harmful rank=7",
        "flip rank=10",
        "pcgrad",
        "bloop",
    ]
    assert (found["drop_harmful"].rank, found["drop_harmful"].refresh_every) == (3, 4)
    assert (found["drop_harmful rank=7"].rank, found["drop_harmful rank=7"].refresh_every) == (7, 4)
    # 10 happens to be the default; the entry names it nevertheless, and so does the saved
    # configuration.
    assert (found["flip"].rank, found["flip rank=10"].rank) == (3, 10)
    assert dump(job).count("rank: 10") == 1
    assert candidates(loads(dump(job))) == candidates(job)
    # One-sided PCGrad refreshes in every step, whatever the others do.
    assert found["pcgrad"].refresh_every is None and found["multitask"].rank == 10


SPACE = {
    "training.guided.lr": ["1e-3", "1e-4"],
    "strategy.primary_weight": ["0.01", "0.1", "1"],
    "model.dropout": ["0", "0.3"],
}


def tried(strategy: StrategyConfig, **settings: Any) -> list[tuple[str, ...]]:
    config = loads(json.dumps({"compare": {"space": SPACE, "weights": [1], **settings}}))
    return [variant.changes for variant in variants(strategy, config.compare, tuned=True)]


def test_every_strategy_gets_the_same_number_of_drawn_settings():
    multitask, pcgrad, pretrain = (
        tried(StrategyConfig(name=name)) for name in ("multitask", "pcgrad", "pretrain")
    )
    assert multitask == pcgrad and len(set(multitask)) == len(set(pretrain)) == 4
    expected = ("training.guided.lr=1e-3", "strategy.primary_weight=0.01", "model.dropout=0")
    assert multitask[0] == expected
    # Its fixed primary weight defines this strategy.
    assert pretrain[0] == ("training.guided.lr=1e-3", "model.dropout=0")
    assert tried(StrategyConfig(name="flip", primary_weight=0.0)) == pretrain
    assert len(tried(StrategyConfig(name="flip"), draws=100)) == 12
    assert len(tried(StrategyConfig(name="flip"), weights=[0.1, 1], draws=3)) == 6


def test_drawn_settings_reach_the_run():
    config = loads(
        json.dumps(
            {"compare": {"space": SPACE, "weights": [1]}, "data": {"auxiliary": {"x": "digits"}}}
        )
    )
    candidate = next(c for c in candidates(config) if c.label == "multitask")
    for variant in variants(candidate.strategy, config.compare, tuned=True):
        made = job(config, candidate, variant, Budget(3, 2))
        values = dict(change.split("=") for change in variant.changes)
        assert made.training.guided.lr == float(values["training.guided.lr"])
        assert made.training.guided.steps == 3
        assert made.strategy.primary_weight == float(values["strategy.primary_weight"])
        assert made.model.dropout == float(values["model.dropout"])


def test_every_run_has_a_folder_of_its_own():
    flip = StrategyConfig(name="flip")
    labels, weights, changes = ("flip", "flip rank=7"), (0.1, 0.3), ((), ("model.width=8",))
    budgets = Budget(3, 2), Budget(3, 4), Budget(4, 2)
    folders = {
        run_dir(Path(), Candidate(label, flip, True), Variant(weight, change), budget, seed)
        for label, weight, change, budget, seed in product(
            labels, weights, changes, budgets, (0, 1)
        )
    }
    assert len(folders) == 2 * 2 * 2 * 3 * 2
