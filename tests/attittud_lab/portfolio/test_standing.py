"""Which candidate is best, which is the baseline, and what a user would have used instead."""

import torch

from attittud_lab.portfolio.standing import (
    best_alone,
    best_with_auxiliary,
    rank,
    usable,
    without_us,
)
from tests.helpers.standings import held, network, outputs_right, simple

TARGETS = torch.arange(90) % 2
HELD = held(TARGETS)
PLAIN = simple("alone", outputs_right(TARGETS, 0.6), HELD)
POOLED = simple("pooled", outputs_right(TARGETS, 0.7), HELD, alone=False)
PRIMARY = network("primary_only", outputs_right(TARGETS, 0.8), HELD)
MULTITASK = network("multitask", outputs_right(TARGETS, 0.9), HELD)
DIVERGED = network("pretrain", None, HELD, diverged="training diverged")
ALL = [PLAIN, POOLED, PRIMARY, MULTITASK, DIVERGED]


def test_a_higher_score_is_better_and_diverged_candidates_are_last():
    assert sorted(ALL, key=rank, reverse=True) == [MULTITASK, PRIMARY, POOLED, PLAIN, DIVERGED]
    assert usable(ALL) == [PLAIN, POOLED, PRIMARY, MULTITASK]


def test_the_baseline_may_be_a_network_and_what_a_user_would_have_is_never_one():
    assert without_us(ALL) is PLAIN
    assert best_with_auxiliary(ALL) is MULTITASK
    assert best_alone([PRIMARY, MULTITASK, DIVERGED]) is PRIMARY
    assert without_us([PRIMARY, MULTITASK]) is None
    assert best_alone([POOLED, DIVERGED]) is None
