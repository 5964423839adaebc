"""How long a comparison takes, from its first steps."""

from pathlib import Path

import pytest

from attittud_lab.compare import forecast as module
from attittud_lab.compare.candidates import Budget
from attittud_lab.compare.forecast import FirstSteps, Forecast, Plan, time_of_all
from attittud_lab.compare.run import Comparison
from tests.helpers.comparisons import config
from tests.helpers.jobs import Seen


def test_a_forecast_times_the_progress_of_other_processes_over_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several of them come at once, and would make steps look as if they took no time."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    seen = Seen()
    forecast = Forecast(seen, Plan(steps=100, untimed={"flip"}, at_once=2))
    forecast.comparison(4)
    run = forecast.alongside("flip with weight 1, seed 0")
    run.phase("guided", 100, 0)
    for moment in (5.0, 5.0, 5.0, 7.0, 9.0):
        now[0] = moment
        run.advance(10, {})
    (text,) = [event[2] for event in seen.seen if event[1] == "say"]
    # 40 steps in 4 seconds, 4 runs of 100 steps, two at a time.
    assert (
        "about 15 to 30 s for the remaining 4 runs" in text
        and "a step of flip with weight 1 takes 0.1 s" in text
    )


def test_a_forecast_after_whole_runs_counts_runs_at_equal_seconds_by_their_budget() -> None:
    seen = Seen()
    forecast = Forecast(
        seen, Plan(steps=100, untimed={"flip", "multitask"}, at_seconds=2, budget=7.0)
    )
    forecast.comparison(6)
    forecast.finished("flip", 20.0)
    forecast.finished("flip", 99.0)  # not the first one of its strategy
    forecast.finished("multitask", None)  # read
    forecast.finished("multitask", 30.0)
    texts = [event[2] for event in seen.seen if event[1] == "say"]
    # Three runs of 20 s and two of 7 s; then only the two of 7 s are left.
    assert ["about 55 to 110 s" in texts[0], "about 10 to 20 s" in texts[1], len(texts)] == [
        True,
        True,
        2,
    ]


def test_the_time_of_all_runs_is_counted_from_first_steps() -> None:
    job = config("compare.seeds=3", "compare.tuning_seeds=2")  # two and one evaluations
    timed = {
        "primary_only": FirstSteps(step=1.0, setup=10.0, evaluation=5.0),
        "multitask": FirstSteps(step=2.0, setup=10.0, evaluation=5.0),
    }
    tries = {"primary_only": 1, "multitask": 2}
    alone = 10 + 1 * 12 + 1 * 4 + 5 * 3
    both = 10 + 2 * 12 + 1 * 4 + 5 * 3
    total = time_of_all(job, Budget(12, 4), timed, tries, None)
    assert total == alone * (3 + 3) + both * (
        3 + 2
    )  # multitask sets the seconds: its runs are there
    assert time_of_all(job, Budget(12, 4), timed, tries, 100.0) == alone * 3 + both * 5 + 600


def test_a_long_forecast_says_once_how_to_shorten_the_comparison() -> None:
    seen = Seen()
    forecast = Forecast(seen, Plan(steps=100, untimed={"flip"}, shorter="To shorten it: less."))
    for seconds in (module.LONG - 1, module.LONG, module.LONG):
        forecast.measured(seconds, "it is slow")
    assert [event[2].split(":")[0] for event in seen.seen] == [
        "Forecast",
        "Forecast",
        "To shorten it",
        "Forecast",
    ]


def test_first_steps_are_forecast_where_nothing_has_begun(tmp_path: Path) -> None:
    seen = Seen()
    comparison = Comparison(config(), tmp_path, seen)
    comparison._forecast(Budget(12, 4))
    texts = [event[2] for event in seen.seen if event[1] == "say"]
    assert sum(text.startswith("Forecast: ") for text in texts) == 1
    (tmp_path / "runs/primary_only/steps-12-4/seed-0").mkdir(parents=True)
    seen.seen.clear()
    comparison._forecast(Budget(12, 4))
    assert not any("Forecast" in str(event) for event in seen.seen)
