"""Forecasts, and what a budget leaves out: steps first, then candidates, never primary_only."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from attittud_lab.config.load import loads
from attittud_lab.config.schema import CandidateConfig, Config
from attittud_lab.portfolio import budget
from attittud_lab.portfolio.budget import Plan, allowed, plan
from attittud_lab.portfolio.candidates import PortfolioCandidate, named
from attittud_lab.training.first_steps import FirstSteps

CPU = torch.device("cpu")


def setting(budget: str | None, steps: int = 1000) -> tuple[Config, list[PortfolioCandidate]]:
    text = f"training: {{mode: joint, guided: {{steps: {steps}}}}}\nportfolio: {{budget: {budget or 'null'}}}"
    config = loads(text)
    weights = [0.1, 0.5, 1, 2, 4]
    entries = [
        named(CandidateConfig(name="multitask", auxiliary_weight=weight), config)
        for weight in weights
    ]
    return config, [named(CandidateConfig(name="primary_only"), config), *entries]


def planned(budget: str | None, per_step: float = 0.1, device: torch.device = CPU) -> Plan:
    config, entries = setting(budget)
    times = FirstSteps({"guided": per_step}, evaluation=0.0)
    timed = {entry.label: times for entry in entries}
    return plan(entries, config, 3, timed, allowed(config, device))


def test_a_budget_that_is_enough_changes_nothing():
    for per_step in (0.001, 0.02, 0.04):  # whatever the clock says
        found = planned("2h", per_step)
        expected = ({"guided": 1000}, 6, [], "")
        assert (found.steps, len(found.candidates), found.left_out, found.decided) == expected
    assert planned(None, 100.0, torch.device("cuda")).decided == ""  # no limit but on a CPU
    assert planned(None, 0.04).decided == "" and planned(None, 1.0).decided != ""


@given(st.floats(1e-4, 30))
@example(0.21875)  # fills the budget up to rounding
def test_a_small_budget_cuts_steps_first_and_then_candidates(per_step):
    found = planned("10m", per_step)
    assert found.candidates[0] == "primary_only" and len(found.candidates) >= 2
    # one step of a hundred is the least
    assert found.seconds <= 600 * 1.01 or found.steps["guided"] == 10
    if found.left_out:
        assert found.steps["guided"] <= 250 and "left out" in found.decided
    assert found.runs == 3 * len(found.candidates)
    seconds = found.runs * found.steps["guided"] * per_step
    assert found.seconds == pytest.approx(seconds, rel=0.06)  # whole steps
    assert (found.decided == "") == (found.steps["guided"] == 1000 and not found.left_out)


def test_networks_beside_simple_candidates_are_trained_for_a_quarter_of_their_steps_or_not_at_all():
    config, entries = setting("10m")
    limit = allowed(config, CPU)
    for per_step, count in [(0.1, 6), (0.35, 2), (0.5, 0)]:
        timed = dict.fromkeys(
            (entry.label for entry in entries), FirstSteps({"guided": per_step}, 0.0)
        )
        found = plan(entries, config, 3, timed, limit, optional=True)
        assert (len(found.candidates), found.decided != "") == (count, True)


def test_the_time_of_simple_candidates_and_of_setting_up_counts():
    config, entries = setting("10m")
    assert allowed(config, CPU, 0.5, 100.0) == 250.0
    assert allowed(config, CPU, 0.5, 700.0) == 0.0
    timed = dict.fromkeys(
        (entry.label for entry in entries), FirstSteps({"guided": 0.0}, 0.0, 10.0)
    )
    assert plan(entries, config, 3, timed, None).seconds == 10.0 * 3 * 6


def test_timing_the_first_steps_ends_when_a_quarter_of_the_time_is_used(monkeypatch):
    """The candidates that were not timed are left out."""
    config, entries = setting("10m")
    clock = iter(range(0, 1000, 100))  # each look at it is 100 seconds later
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(budget, "first_steps", lambda *_: FirstSteps({"guided": 0.01}, 0.0))
    monkeypatch.setattr(budget, "data_for", lambda _, data: data)
    timed = budget.measure(entries, config, SimpleNamespace(primary=Mock()), 1500.0)
    labels = [entry.label for entry in entries]
    assert [*timed] == labels[:3]
    found = plan(entries, config, 3, timed, 1500.0)
    assert (found.candidates, found.left_out) == (labels[:3], labels[3:])
