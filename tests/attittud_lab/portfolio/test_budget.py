"""Forecasts, and what a budget leaves out: steps first, then candidates, never primary_only."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from attittud_lab.config.load import loads
from attittud_lab.config.schema import CandidateConfig, Config
from attittud_lab.errors import InputError
from attittud_lab.portfolio.budget import Costs, Plan, expected_runs, forecast, plan, rung_look
from attittud_lab.portfolio.candidates import PortfolioCandidate, named

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
    costs = Costs({entry.label: {"guided": per_step} for entry in entries}, look=0.0)
    return plan(entries, config, 3, costs, device)


def test_a_budget_that_is_enough_changes_nothing() -> None:
    for per_step in (0.001, 0.02, 0.05):  # whatever the clock says
        found = planned("2h", per_step)
        assert (found.steps, len(found.candidates), found.left_out, found.decided) == (
            {"guided": 1000},
            6,
            [],
            "",
        )
    assert planned(None, 100.0, torch.device("cuda")).decided == ""  # no limit but on a CPU
    assert planned(None, 0.05).decided == "" and planned(None, 1.0).decided != ""


@given(st.floats(1e-4, 30))
@example(0.21875)  # fills the budget up to rounding
def test_a_small_budget_cuts_steps_first_and_then_candidates(per_step: float) -> None:
    found = planned("10m", per_step)
    assert found.candidates[0] == "primary_only" and len(found.candidates) >= 2
    assert (
        found.seconds <= 600 * 1.01 or found.steps["guided"] == 10
    )  # one step of a hundred is the least
    if found.left_out:
        assert found.steps["guided"] <= 250 and "left out" in found.decided
    assert found.runs * sum(found.costs.values()) / len(found.costs) == pytest.approx(found.seconds)
    assert (found.decided == "") == (found.steps["guided"] == 1000 and not found.left_out)


def test_a_budget_can_be_a_number_of_runs() -> None:
    assert len(planned("100 runs").candidates) == 6
    few = planned("6 runs", 1000.0)
    assert few.runs <= 6 and few.steps == {"guided": 1000} and few.candidates[0] == "primary_only"
    assert "are the fewest" not in few.decided
    fewest = planned("1 runs")
    assert (
        f"a portfolio needs at least 2 candidates, which take about {fewest.runs:.1f} runs"
        in fewest.decided
    )
    for wrong in ("much", "3 walks", "0s", "0 runs", "0.0 run", ""):
        with pytest.raises(
            InputError, match=r"portfolio\.budget: .* is neither a time nor a number of runs"
        ):
            planned(f"'{wrong}'")


def test_the_forecast_counts_runs_and_time() -> None:
    config, entries = setting(None, steps=1500)
    config = replace(config, portfolio=replace(config.portfolio, final="single"))
    assert (
        rung_look(config, 0.2) == 2
        and rung_look(config, 0.5) == 6
        and rung_look(config, 0.001) == 0
    )
    # 6 candidates to 3/15, of which 2 and primary_only go on to 7/15, 2 to the end, in 3 folds, and
    # the last training.
    assert expected_runs(6, 3, config) == pytest.approx(3 * (6 * 3 + 3 * 4 + 2 * 8) / 15 + 1)
    assert expected_runs(3, 3, config, done=1) == pytest.approx(3 * (3 * 4 + 2 * 8) / 15 + 1)
    assert expected_runs(2, 3, config, done=2) == pytest.approx(3 * (2 * 8) / 15 + 1)
    words = forecast(Plan({}, [entry.label for entry in entries], 1, 11.4, 840.0), 3)
    assert (
        words
        == "6 candidate strategies on 3 folds of the labels take as long as about 11 full runs: about 11 to 30 min"
    )
    words = forecast(Plan({}, ["primary_only"], 1, 4.0, 840.0), 1)
    assert (
        words
        == "1 candidate strategy on one split of the labels takes as long as about 4.0 full runs: about 11 to 30 min"
    )


def test_the_sum_of_sources_is_part_of_the_forecast() -> None:
    config, entries = setting(None)
    alone = [named(CandidateConfig(name="multitask", sources=[name]), config) for name in "abcd"]
    entries = [*entries[:2], *alone]
    costs = Costs({entry.label: {"guided": 0.01} for entry in entries}, look=0.0)
    found, without = (plan(entries, config, 3, costs, CPU, sums=sums) for sums in (True, False))
    assert found.runs == expected_runs(7, 3, config) > without.runs == expected_runs(6, 3, config)
    assert found.seconds > without.seconds and found.sums and not without.sums
    said = "6 candidate strategies, and one more with all sources that help, on 3 folds of the labels take "
    assert forecast(found, 3).startswith(said)
    few = plan(entries, setting("6 runs")[0], 3, costs, CPU, sums=True)
    assert (
        len(few.candidates) < 4 and not few.sums
    )  # where no two sources are tried alone, no sum follows
