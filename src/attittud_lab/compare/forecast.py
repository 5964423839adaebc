"""How long a comparison will take: from the first steps of every strategy, then from whole runs.

`Forecast` stands between the runs and what a person sees: it passes all progress on, and says a
line when it knows more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

import torch

from attittud_lab.compare import words
from attittud_lab.compare.candidates import MULTITASK, PRIMARY_ONLY, Budget
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import Prepared
from attittud_lab.output.progress import Progress
from attittud_lab.training.devices import choose_device, on_device
from attittud_lab.training.evaluate import outputs_of
from attittud_lab.training.phase import Phase
from attittud_lab.training.train import conditions, new_model

TIMED_STEPS = 3
"""Steps of every strategy that are timed before the first run."""
TIMED_SECONDS = 3.0
"""Seconds over which a run in another process is timed, because its reports arrive in bundles."""
LONG = 600.0
"""Seconds from which a forecast says how to shorten the comparison."""


@dataclass
class Plan:
    """The runs of a comparison, and what is known about their times."""

    steps: int
    """Steps of a run."""
    untimed: set[str]
    """Strategies of which no run has been timed."""
    at_seconds: int = 0
    """The number of runs at equal seconds, which come last."""
    budget: float | None = None
    """The seconds of a run at equal seconds, if a budget sets them."""
    at_once: int = 1
    """How many runs are trained at the same time."""
    shorter: str = ""
    """How to shorten the comparison; empty once it has been said."""
    seconds: list[float] = field(default_factory=list)
    """Training times, one for each strategy that was timed."""
    left: int = 0
    """Runs that are not finished."""
    told: bool = False
    """Whether there was a forecast."""

    def time_left(self, seconds: float) -> float:
        """Return the time of the remaining runs if a run at equal steps takes `seconds`."""
        at_seconds = min(self.left, self.at_seconds)
        at_steps = self.left - at_seconds
        total = at_steps * seconds + at_seconds * (self.budget or seconds)
        return total / max(1, min(self.at_once, self.left))


class Forecast(Progress):
    """Times the trained runs and forecasts how long the others will take.

    It forecasts after the first steps, and again when every strategy has been run once.
    """

    def __init__(
        self,
        progress: Progress,
        plan: Plan,
        label: str = "",
        least_seconds: float = 0.0,
    ) -> None:
        self._progress = progress
        self._plan = plan
        self._label = label
        self._least_seconds = least_seconds
        """Seconds for which steps are timed before they make a forecast."""
        self._timed_since: float | None = None
        self._timed_steps = 0
        # These calls are passed on unchanged.
        self.say = progress.say  # type: ignore[method-assign]
        self.evaluated = progress.evaluated  # type: ignore[method-assign]
        self.end = progress.end  # type: ignore[method-assign]

    def comparison(self, runs: int, done: int = 0) -> None:
        """Plan this many runs, including finished ones; `done` of them have been read."""
        self._plan.left = runs - done
        self._progress.comparison(runs)

    def begin(self, what: str) -> None:
        self._label = _label(what)
        self._progress.begin(what)

    def alongside(self, what: str) -> Progress:
        return Forecast(self._progress.alongside(what), self._plan, _label(what), TIMED_SECONDS)

    def phase(self, name: str, steps: int | None, done: int) -> None:
        self._timed_since = None
        self._progress.phase(name, steps, done)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        """Pass steps on, and forecast from them where there was no forecast yet."""
        self._progress.advance(steps, values)
        now = time.monotonic()
        if self._timed_since is None:  # the first steps, in which much is set up, do not count
            self._timed_since = now
            self._timed_steps = 0
            return
        self._timed_steps += steps
        elapsed = now - self._timed_since
        if not self._plan.told and elapsed > self._least_seconds:
            step = elapsed / self._timed_steps
            reason = words.after_first_steps(self._label, step)
            self._forecast_rest(step * self._plan.steps, reason)

    def finished(self, label: str, seconds: float | None) -> None:
        """Count a run of this strategy.

        `seconds` is its training time, None if it was trained earlier.
        """
        plan = self._plan
        plan.left -= 1
        if seconds is None:
            return
        if label in plan.untimed:
            plan.untimed.remove(label)
            plan.seconds.append(seconds)
            if not plan.untimed:
                self._forecast_rest(fmean(plan.seconds), words.AFTER_EVERY_STRATEGY)
        if not plan.told:
            self._forecast_rest(seconds, words.after_one_run(label))

    def measured(self, seconds: float, reason: str) -> None:
        """Say a forecast before the first run."""
        self._plan.told = True
        self._say(words.forecast_of_all(seconds, reason), seconds)

    def _forecast_rest(self, seconds: float, reason: str) -> None:
        """Say a forecast of the remaining runs, one of which takes `seconds`."""
        self._plan.told = True
        total = self._plan.time_left(seconds)
        if total > 0:
            self._say(words.forecast_of_rest(total, self._plan.left, reason), total)

    def _say(self, text: str, seconds: float) -> None:
        """Say a forecast of so many seconds, and once after a long one how to shorten it."""
        self.say(text)
        if seconds >= LONG and self._plan.shorter:
            self.say(self._plan.shorter)
            self._plan.shorter = ""


def _label(run: str) -> str:
    """Return the strategy in the name of a run."""
    return run.rpartition(", seed ")[0]


@dataclass(frozen=True)
class FirstSteps:
    """Seconds of the first steps of a run."""

    step: float
    """A step of the guided phase."""
    setup: float
    """Everything before the second step."""
    evaluation: float


def first_steps(config: Config, data: Prepared, threads: int) -> FirstSteps:
    """Train a few steps in this process and time them."""
    device = choose_device(config.device)
    began = time.perf_counter()
    with conditions(config, data, device):
        data = on_device(data, device)
        model = new_model(config, data, device)
        torch.set_num_threads(threads)
        phase = Phase("guided", config, data, model, device, "loss")
        times: list[float] = []
        for _ in range(TIMED_STEPS + 1):
            phase.step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter())
        outputs_of(model, data.validation, device, head="primary")
        evaluation = time.perf_counter() - times[-1]
    return FirstSteps(
        step=(times[-1] - times[0]) / TIMED_STEPS,
        setup=times[0] - began,
        evaluation=evaluation,
    )


def time_of_all(
    config: Config,
    budget: Budget,
    timed: Mapping[str, FirstSteps],
    tries: Mapping[str, int],
    seconds: float | None,
) -> float:
    """Estimate the seconds of a whole comparison in one process from the first steps.

    `timed` and `tries` (the number of settings that are tried) are by strategy. `seconds` is the
    budget of a run at equal seconds, None for the time that multitask takes.

    A run takes set-up + guided steps + fine-tuning steps, which cost as much as those of
    primary_only, + evaluations. A strategy has one run for each seed, and for each further try one
    run for each tuning seed.
    """
    settings = config.compare
    training = config.training
    evaluations = training.guided.evaluations
    if budget.finetune:
        evaluations += training.finetune.evaluations
    total = 0.0
    for label, times in timed.items():
        run = times.setup + times.step * budget.guided
        run += timed[PRIMARY_ONLY].step * budget.finetune
        run += times.evaluation * evaluations
        total += run * (settings.seeds + (tries[label] - 1) * settings.tuning_seeds)
        # Without a budget, multitask's runs at equal seconds are those at equal steps.
        again = label != MULTITASK or seconds is not None
        if settings.equal == "both" and again:
            total += settings.seeds * (seconds or run)
    return total


def slowest_and_fastest(timed: Mapping[str, FirstSteps]) -> str:
    """Say which strategies have the cheapest and the dearest step."""
    low = min(timed, key=lambda label: timed[label].step)
    high = max(timed, key=lambda label: timed[label].step)
    return words.range_of_steps((low, timed[low].step), (high, timed[high].step))
