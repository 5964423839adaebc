"""How long a comparison will take, from the first steps of every strategy."""

from __future__ import annotations

from collections.abc import Mapping

from attittud_lab.compare import words
from attittud_lab.compare.candidates import MULTITASK, Budget
from attittud_lab.config.schema import Config
from attittud_lab.training.first_steps import FirstSteps


def time_of_all(
    config: Config,
    budget: Budget,
    timed: Mapping[str, FirstSteps],
    tries: Mapping[str, int],
    seconds: float | None,
) -> float:
    """Estimate the seconds of a whole comparison, one run after the other.

    `timed` and `tries` (the number of settings that are tried) are by strategy. `seconds` is the
    budget of a run at equal seconds, None for the time that multitask takes.

    A run takes set-up + steps + evaluations. A strategy has one run for each seed, and for each
    further try one run for each tuning seed.
    """
    settings = config.compare
    training = config.training
    lengths = {"guided": budget.guided}
    evaluations = training.guided.evaluations
    if budget.finetune:
        lengths["finetune"] = budget.finetune
        evaluations += training.finetune.evaluations
    total = 0.0
    for label, times in timed.items():
        run = times.setup + times.of_steps(lengths) + times.evaluation * evaluations
        total += run * (settings.seeds + (tries[label] - 1) * settings.tuning_seeds)
        # Without a budget, multitask's runs at equal seconds are those at equal steps.
        again = label != MULTITASK or seconds is not None
        if settings.equal == "both" and again:
            total += settings.seeds * (seconds or run)
    return total


def slowest_and_fastest(timed: Mapping[str, FirstSteps]) -> str:
    """Say which strategies have the cheapest and the dearest step."""
    seconds = {label: times.steps["guided"] for label, times in timed.items()}
    low = min(seconds, key=lambda label: seconds[label])
    high = max(seconds, key=lambda label: seconds[label])
    return words.range_of_steps((low, seconds[low]), (high, seconds[high]))
