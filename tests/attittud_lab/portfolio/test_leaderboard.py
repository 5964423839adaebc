"""The leaderboard: its rows, the chance that auxiliary data help, and what they were worth."""

import math

import numpy as np
import pytest
import torch

from attittud_lab.portfolio.intervals import Intervals
from attittud_lab.portfolio.leaderboard import INTERCEPT, SLOPE, chance, rows, worth
from tests.helpers.standings import held, network, outputs_right, simple

TARGETS = torch.arange(90) % 2
HELD = held(TARGETS)


def test_the_chance_follows_from_scores_and_losses():
    plain = simple("alone", outputs_right(TARGETS, 0.6), HELD)
    pooled = simple("pooled", outputs_right(TARGETS, 0.7), HELD, alone=False)
    estimate = chance([plain, pooled], HELD)
    # Nine of 90 examples are right instead of wrong, by 4 in both outputs.
    wrong, right = math.log(1 + math.exp(4)), math.log(1 + math.exp(-4))
    gained = np.array([wrong - right] * 9 + [0.0] * 81)
    expected = 0.1 / math.sqrt(0.6 * 0.4 / 90) + gained.mean() / (
        gained.std(ddof=1) / math.sqrt(90)
    )
    assert estimate["evidence"] == pytest.approx(expected, rel=1e-5)
    assert estimate["gain"] == pytest.approx(gained.mean(), rel=1e-5)
    found = estimate["value"]
    assert found == pytest.approx(1 / (1 + math.exp(-INTERCEPT - SLOPE * expected)), rel=1e-5)
    rough = chance([plain, pooled], HELD, usual=False)
    assert rough == estimate | {"calibrated": False}
    assert chance([plain], HELD) is None
    assert chance([pooled], HELD) is None


def test_rows_have_the_order_of_the_ranking_and_say_what_each_candidate_is():
    plain = simple("alone", outputs_right(TARGETS, 0.6), HELD)
    pooled = simple("pooled", outputs_right(TARGETS, 0.8), HELD, alone=False)
    primary = network("primary_only", outputs_right(TARGETS, 0.7), HELD)
    best = {"look": 0, "phase": "guided", "step": 7}
    multitask = network("multitask", outputs_right(TARGETS, 0.9), HELD, best=best)
    diverged = network("pretrain", None, HELD, diverged="training diverged")
    standings = [diverged, multitask, plain, primary, pooled]
    intervals = Intervals(HELD, None, 0)
    table = rows(standings, intervals, {"pooled": 3})
    labels = [row["label"] for row in table]
    assert labels == ["multitask", "pooled", "primary_only", "alone", "pretrain"]
    by_label = dict(zip(labels, table, strict=True))
    assert [row["label"] for row in table if row["reference"]] == ["primary_only"]
    assert [row["label"] for row in table if row["without_us"]] == ["alone"]
    assert [row["kind"] for row in table] == ["network", "simple", "network", "simple", "network"]
    assert [row["alone"] for row in table] == [False, False, True, True, False]
    assert by_label["pooled"]["picks"] == 3
    assert by_label["multitask"]["best"] == best
    assert "score" not in by_label["pretrain"]
    for standing in (pooled, multitask, plain):
        row = by_label[standing.label]
        assert row["low"] < row["score"] < row["high"]
        assert row["to_reference"] == intervals.difference(standing.outputs, primary.outputs)
    assert "to_reference" not in by_label["primary_only"]
    gain = worth(standings, intervals)
    assert (gain["best"], gain["reference"], gain["of"]) == ("multitask", "primary_only", 2)
    # The same examples are wrong, so the difference is surer than each score.
    assert gain["difference"] == pytest.approx(0.2, abs=1e-6)
    assert 0.1 < gain["low"] < 0.2 < gain["high"] < 0.3
