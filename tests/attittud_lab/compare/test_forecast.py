"""How long a comparison takes, from its first steps."""

from attittud_lab.compare.candidates import Budget
from attittud_lab.compare.forecast import FirstSteps, Forecast, Plan, time_of_all
from tests.helpers.comparisons import config
from tests.helpers.jobs import Seen


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
