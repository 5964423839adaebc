"""leaderboard.json: the score of each candidate with its interval, and what the auxiliary data were
worth.

`run.py` writes it, and the terminal and the page read it. Scores and differences are shares; `low`
and `high` are the ends of their 95 % intervals.

    candidates                  rows from the best to the worst, as `rows` makes them
    worth                       the best candidate with auxiliary data minus the best without; None
                                if one of the two is missing
    chance                      that auxiliary data help, as `chance` estimates it
    guess                       the model beside the best constant guess
    final                       single or ensemble, the winner, how often each candidate was picked,
                                and the out-of-fold score of the model
    decision, without_us,       sentences
    warning
    labels, validated, folds    how many labels there are, how many were held out, in how many folds
    not_validated               classes that are too rare to be held out
    tested                      whether there is a test set
    simple, networks            features and lines; looks and plan of each learner
    model                       its members, its bytes, and the seconds of a prediction
    translations, suspicious    what the labels of each source mean, and which look wrong
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attittud_lab.portfolio.choose import HeldOut
from attittud_lab.portfolio.intervals import Intervals
from attittud_lab.portfolio.standing import (
    Standing,
    best_alone,
    best_with_auxiliary,
    rank,
    ranking_score,
    scores_of,
    with_auxiliary,
    without_us,
)

NAME = "leaderboard.json"
VERSION = 5
INTERCEPT, SLOPE = -0.18, 0.40
"""The chance is a logistic function of the evidence; both numbers come from development pairs."""
_LEAST_VARIANCE = 1e-4
"""The least variance of a score: the standard error would vanish where the score is nearly 0 or
1.
"""


def chance(
    standings: Sequence[Standing], held_out: HeldOut, *, usual: bool = True
) -> dict[str, Any] | None:
    """Estimate the chance that auxiliary data help; None if nothing can be compared.

    The evidence is how far the best candidate without auxiliary data is behind, in standard
    errors: its score a behind the best score b with auxiliary data, and its log-loss behind the
    lowest one, which is compared example by example, as in a paired t-test over n examples.

        evidence = (b - a) / √(a (1 - a) / n) + t,    t = mean(d) / (std(d) / √n)
        value = 1 / (1 + exp(-(INTERCEPT + SLOPE · evidence)))

    `usual`: the candidates are those that the formula was calibrated on. In the result, `gain` is
    mean(d) and `calibrated` is `usual`.
    """
    alone = best_alone(standings)
    others = with_auxiliary(standings)
    if alone is None or not others:
        return None
    score = ranking_score(alone)
    error = math.sqrt(max(score * (1 - score), _LEAST_VARIANCE) / len(held_out.targets))
    ahead = 0.0
    if math.isfinite(score):
        ahead = (max(map(ranking_score, others)) - score) / error
    losses = [held_out.losses(held_out.likely(scores_of(other))) for other in others]
    lowest = min(losses, key=lambda of_examples: of_examples.mean())
    behind = held_out.losses(held_out.likely(scores_of(alone))) - lowest
    t = 0.0
    if len(behind) > 1 and behind.std(ddof=1) > 0:
        error_of_mean = float(behind.std(ddof=1)) / math.sqrt(len(behind))
        t = float(behind.mean()) / error_of_mean
    evidence = ahead + t
    exponent = max(-50.0, min(50.0, INTERCEPT + SLOPE * evidence))
    return {
        "value": 1 / (1 + math.exp(-exponent)),
        "evidence": evidence,
        "gain": float(behind.mean()),
        "calibrated": usual,
    }


def worth(standings: Sequence[Standing], intervals: Intervals) -> dict[str, Any] | None:
    """Return the best candidate with auxiliary data minus the best without, both out of fold.

    `of` is the number of candidates among which the best was chosen. Returns None if there is
    nothing to compare.
    """
    alone = best_alone(standings)
    best = best_with_auxiliary(standings)
    if alone is None or best is None:
        return None
    others = with_auxiliary(standings)
    gain: dict[str, Any] = {"best": best.label, "reference": alone.label, "of": len(others)}
    gain |= intervals.difference(scores_of(best), scores_of(alone))
    if intervals.few is not None:
        gain["few_groups"] = intervals.few
    return gain


def answer(gain: Mapping[str, Any] | None) -> Literal["use", "no_help", "unclear"]:
    """Decide by the 95 % interval of a gain whether auxiliary data helped.

    `gain` is a worth or another difference with the ends `low` and `high`. In JSON, ends that are
    not defined are None. `skipped` counts candidates with auxiliary data that were not tried, so
    that a loss says little. Sentences, the terminal and the page all ask here.
    """
    if gain is None:
        return "unclear"
    low = gain.get("low")
    high = gain.get("high")
    if low is not None and low > 0:
        return "use"
    if high is not None and high < 0 and "skipped" not in gain:
        return "no_help"
    return "unclear"


def rows(
    standings: Sequence[Standing], intervals: Intervals, picks: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Return a row for each candidate, from the best to the worst; diverged candidates are last.

    `picks` says how often candidates are members of the model. `to_reference` compares a candidate
    with the best one without auxiliary data.
    """
    reference = best_alone(standings)
    simple = without_us(standings)
    table = []
    for standing in sorted(standings, key=rank, reverse=True):
        row: dict[str, Any] = {
            "label": standing.label,
            "settings": standing.settings,
            "kind": standing.kind,
            "alone": standing.alone,
            "without_us": standing is simple,
            "for_comparison": standing.for_comparison,
            "reference": standing is reference,
            "steps": standing.steps,
            "seconds": standing.seconds,
            "diverged": standing.diverged,
            "picks": picks.get(standing.label, 0),
        }
        if standing.curve is not None:
            row |= _scored(standing, intervals)
            if reference is not None and reference is not standing:
                gain = intervals.difference(scores_of(standing), scores_of(reference))
                row["to_reference"] = gain
        table.append(row)
    return table


def _scored(standing: Standing, intervals: Intervals) -> dict[str, Any]:
    """Return the figures of a candidate that did not diverge."""
    curve = standing.curve
    assert curve is not None
    outputs = scores_of(standing)
    figures = intervals.held_out.figures(outputs)
    low, high = intervals.ends(intervals.scores(outputs))
    row: dict[str, Any] = {
        "score": figures[intervals.held_out.metric],
        "low": low,
        "high": high,
        "loss": figures["loss"],
        "ranking": ranking_score(standing),
    }
    if not standing.simple:
        row["best"] = standing.best
        row["curve"] = {"score": list(curve.scores), "loss": list(curve.losses)}
    return row
