"""The choice of one candidate: a small lead does not beat a simpler candidate."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from attittud_lab.portfolio.intervals import Intervals
from attittud_lab.portfolio.standing import Standing, rank, scores_of
from attittud_lab.portfolio.winner import TIE, choose_single
from tests.helpers.standings import held, network, outputs_right, simple

TARGETS = torch.arange(100) % 2
HELD = held(TARGETS)
INTERVALS = Intervals(HELD, None, 0)


def test_a_tie_goes_to_the_simpler_candidate_and_a_clear_lead_wins():
    plain = simple("alone", outputs_right(TARGETS, 0.70), HELD)
    pooled = simple("pooled", outputs_right(TARGETS, 0.71, first=40), HELD, alone=False)
    primary = network("primary_only", outputs_right(TARGETS, 0.71, first=60), HELD)
    multitask = network("multitask", outputs_right(TARGETS, 0.72, first=80), HELD)
    assert choose_single([plain, pooled, primary, multitask], INTERVALS) is plain
    assert choose_single([multitask, primary], INTERVALS) is primary
    better = network("multitask", outputs_right(TARGETS, 0.9, first=40), HELD)
    assert choose_single([plain, pooled, better], INTERVALS) is better


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=6))
def test_the_chosen_candidate_is_a_tie_and_nothing_simpler_is(made):
    standings = []
    for number, (right, alone) in enumerate(made):
        outputs = outputs_right(TARGETS, right / 20, first=7 * number)
        standings.append(simple(f"candidate {number}", outputs, HELD, alone=alone))
    best = max(standings, key=rank)
    chosen = choose_single(standings, INTERVALS)

    def close(standing: Standing) -> bool:
        lead = rank(best)[1][0] - rank(standing)[1][0]
        error = INTERVALS.error(scores_of(best), scores_of(standing))
        return standing is best or (not math.isnan(error) and lead <= TIE * error)

    assert close(chosen)
    if not chosen.alone:
        assert not any(close(standing) for standing in standings if standing.alone)
