"""A comparison: tune the strategies, train them for equal steps and for equal seconds, and decide.

`compare` is what the command calls. The state of a comparison is in the run folders alone, so that
it can be continued.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from attittud_lab.compare import words
from attittud_lab.compare.advice import Request, advice
from attittud_lab.compare.candidates import (
    MULTITASK,
    PRIMARY_ONLY,
    Budget,
    Candidate,
    Tuned,
    Variant,
    candidates,
    job,
    planned,
    run_dir,
    seeds,
    tuning_seeds,
    variants,
)
from attittud_lab.compare.content import ByLabel, content, costs, multitask_of
from attittud_lab.compare.reference import simple_alone
from attittud_lab.compare.runs import Run, Runs
from attittud_lab.config.load import dump
from attittud_lab.config.schema import Config
from attittud_lab.data.primary import check_held_out
from attittud_lab.files import (
    make_folder,
    only_one_process,
    without_nan,
    write_atomically,
    write_json,
)
from attittud_lab.output.progress import Progress, parse_duration
from attittud_lab.placing.job import InThisProcess, Place
from attittud_lab.runs.result import RunResult
from attittud_lab.strategies import find
from attittud_lab.training.first_steps import first_steps
from attittud_lab.training.phase import DivergedError
from attittud_lab.training.train import load_data, phase_names, steps_of_phases

NAME = "comparison.json"


class Comparison:
    """One comparison in its folder."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        progress: Progress | None = None,
        *,
        fresh: bool = False,
        place: Place | None = None,
        request: Request | None = None,
    ) -> None:
        """Find the strategies and their tries; refuses a job that cannot be compared, and writes
        nothing. The arguments are those of `compare`.
        """
        self.config = config
        self.folder = folder
        self.progress = progress or Progress()
        self.request = request or Request()
        self.place = place or InThisProcess()
        settings = config.compare
        check_held_out(config.data.primary)
        self.seeds = seeds(config)
        self.tuning_seeds = tuning_seeds(config)
        self.budget_seconds: float | None = None
        """Seconds of each run at equal seconds; None: as many as multitask takes."""
        if settings.budget is not None:
            self.budget_seconds = parse_duration(settings.budget, "compare.budget")
        self.candidates = candidates(config)
        self.variants: dict[str, list[Variant]] = {}
        """The tries of each strategy, by label."""
        for candidate in self.candidates:
            tries = variants(candidate.strategy, settings, tuned=candidate.tuned)
            self.variants[candidate.label] = tries
        self.runs = Runs(config, folder, fresh=fresh, place=self.place)

    def run(self) -> dict[str, Any]:
        """Tune, then compare at equal steps and, unless switched off, at equal seconds.

        Trains all missing runs, and returns the content of comparison.json, which it also writes.
        Runs that are the same are trained once: the tuning runs with the chosen settings count at
        equal steps, and those at equal steps may count at equal seconds.
        """
        write_atomically(self.folder / "config.yaml", dump(self.config).encode())
        budget = self.configured_budget()
        self._announce(budget)
        self.runs.complete(self._tries(budget), self.progress)
        rows = self._tuned(budget)
        at_steps = self._all_seeds(rows, dict.fromkeys(self.variants, budget))
        at_seconds = None
        if self.config.compare.equal == "both":
            seconds, budgets = equal_seconds(rows, budget, self.budget_seconds)
            # Where the steps are the same, as for multitask, there is nothing more to run.
            strategies_left = len(budgets) - list(budgets.values()).count(budget)
            runs_left = strategies_left * len(self.seeds)
            self.progress.comparison(len(self.runs.results) + runs_left)
            at_seconds = (seconds, self._all_seeds(rows, budgets))
        result = self._result(content(self.config, self.folder, rows, at_steps, at_seconds))
        write_json(self.folder / NAME, result)
        return result

    def configured_budget(self) -> Budget:
        """Return the configured steps; the data are read only to convert epochs into steps."""
        lengths = {}
        in_epochs = False
        for name in phase_names(self.config):
            phase = getattr(self.config.training, name)
            lengths[name] = phase.steps
            in_epochs = in_epochs or bool(phase.epochs)
        if in_epochs:
            lengths = steps_of_phases(self.config, self.runs.prepared(self.seeds[0]))
        return Budget(**lengths)

    def _announce(self, budget: Budget) -> None:
        """Say how many runs there are, and how long they will take."""
        at_steps, at_seconds = planned(self.config, self.candidates)
        quick = self.request.whole is not None
        count = len(self.candidates)
        self.progress.say(words.announcement(count, at_steps, at_seconds, quick=quick))
        configured = self.config.strategy.name
        if find(configured).trains_others:
            self.progress.say(words.left_out(configured))
        self.progress.comparison(at_steps + at_seconds)
        begun = any(run_dir(self.folder, *run).exists() for run in self._tries(budget))
        shows_something = type(self.progress) is not Progress  # the base class is silent
        if shows_something and (self.runs.fresh or not begun):
            with suppress(DivergedError):  # the run itself will say that it diverged
                self._forecast(budget, at_steps, at_seconds)

    def _forecast(self, budget: Budget, at_steps: int, at_seconds: int) -> None:
        """Say how long all runs will take, from the first steps of every strategy."""
        data = self.runs.prepared(self.seeds[0])
        lengths = {}
        evaluations = 0
        for name in phase_names(self.config):
            lengths[name] = getattr(budget, name)
            evaluations += getattr(self.config.training, name).evaluations
        steps = {}
        seconds = []
        for candidate in self.candidates:
            config = job(self.config, candidate, self.variants[candidate.label][0], budget)
            times = first_steps(config, data, self.runs.threads_of(config, data))
            steps[candidate.label] = times.steps["guided"]
            seconds.append(times.setup + times.of_run(lengths, evaluations))
        each = fmean(seconds)
        total = at_steps * each + at_seconds * (self.budget_seconds or each)
        reason = words.range_of_steps(steps)
        self.progress.say(words.forecast_of_all(total / self.place.at_once, reason))

    def _tries(self, budget: Budget) -> Iterator[Run]:
        """Yield all tries on the tuning seeds.

        Strategies take turns, so that a busy machine does not make one of them look slow.
        """
        for seed in self.tuning_seeds:
            for tries in zip_longest(*self.variants.values()):
                for candidate, variant in zip(self.candidates, tries, strict=True):
                    if variant is not None:
                        yield Run(candidate, variant, budget, seed)

    def _tuned(self, budget: Budget) -> list[Tuned]:
        """Let every strategy choose among its finished tries; those that always diverged are left
        out.
        """
        rows = []
        for candidate in self.candidates:
            tries: dict[Variant, list[RunResult | None]] = {}
            for variant in self.variants[candidate.label]:
                tries[variant] = []
                for seed in self.tuning_seeds:
                    run = Run(candidate, variant, budget, seed)
                    tries[variant].append(self.runs.result(run))
            row = choose(candidate, tries)
            if row is not None:
                rows.append(row)
        return rows

    def _all_seeds(self, rows: Sequence[Tuned], budgets: Mapping[str, Budget]) -> ByLabel:
        """Train every strategy with all seeds, each for its own budget, and return the results
        without runs that diverged; refuses baselines without any.

        Runs go seed by seed, so that an interrupted comparison has equally many of every strategy.
        """
        runs: list[Run] = []
        for seed, row in product(self.seeds, rows):
            runs.append(Run(row.candidate, row.variant, budgets[row.label], seed))
        self.runs.complete(runs, self.progress)
        by_label: ByLabel = {row.label: {} for row in rows}
        for run in runs:
            result = self.runs.result(run)
            if result is not None:
                by_label[run.candidate.label][run.seed] = result
        for label in (PRIMARY_ONLY, MULTITASK):
            if not by_label[label]:
                raise words.no_baseline(label, "seed")
        return by_label

    def _result(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Return `figures` with the strategies that always diverged, and advice what to do next."""
        diverged = [label for label in self.variants if label not in figures["costs"]]
        each = fmean(self.runs.seconds) / self.place.at_once
        next_steps = advice(self.config, figures, self.request, each)
        first = self.seeds[0]
        data = load_data(self.config, first, [self.runs.prepared(first)])
        instead = simple_alone(self.config, data, figures["metric"])
        result: dict[str, Any] = without_nan(
            {**figures, "diverged": diverged, "instead": instead, **next_steps}
        )
        return result


def choose(
    candidate: Candidate, tries: Mapping[Variant, Sequence[RunResult | None]]
) -> Tuned | None:
    """Return a strategy with the best of its tries; None where all diverged.

    `tries` are the results of every setting on the tuning seeds; None where a run diverged.
    """
    scores: dict[Variant, float | None] = dict.fromkeys(tries)
    order: dict[Variant, tuple[float, float, float]] = {}
    for variant, results in tries.items():
        runs = list(filter(None, results))
        if len(runs) == len(results):
            score = fmean(run.validation[run.metric] for run in runs)
            loss = fmean(run.validation["loss"] for run in runs)
            scores[variant] = score
            # Among equally good weights take the one nearest to 1, for which the strategy was made;
            # then the lower loss.
            order[variant] = (score, -abs(math.log(variant.weight)), -loss)
    if not order:
        if candidate.label in (PRIMARY_ONLY, MULTITASK):
            raise words.no_baseline(candidate.label, "weight")
        return None
    best = max(order, key=lambda variant: order[variant])
    # Costs come from the tuning seeds alone, so that more seeds later do not change the plan, and
    # from runs with any weight: a strategy whose chosen weight was timed on a busy machine does not
    # count as slower.
    same_work: list[RunResult] = []
    for variant, results in tries.items():
        if variant.changes == best.changes:
            same_work += filter(None, results)
    step, finetune = costs(same_work)
    return Tuned(candidate, best, scores, step, finetune)


def equal_seconds(
    rows: Sequence[Tuned], budget: Budget, seconds: float | None
) -> tuple[float, dict[str, Budget]]:
    """Return the seconds of every run, and by label the steps that take as long.

    The seconds are those of a budget, or as many as multitask takes for the configured steps. A
    budget stretches both phases by the same factor. Within the guided phase every strategy gets the
    same time: its steps are those of multitask times the ratio of the seconds per step.
    """
    multitask = multitask_of(rows)
    usual = multitask.seconds_per_step * budget.guided + multitask.finetune_seconds
    if seconds is None:
        seconds = usual
    factor = seconds / usual
    finetune = 0
    if budget.finetune:
        finetune = max(1, round(factor * budget.finetune))
    budgets = {}
    for row in rows:
        guided = factor * budget.guided * multitask.seconds_per_step / row.seconds_per_step
        budgets[row.label] = Budget(max(1, round(guided)), finetune)
    return seconds, budgets


def compare(
    config: Config,
    folder: Path,
    progress: Progress | None = None,
    *,
    fresh: bool = False,
    place: Place | None = None,
    request: Request | None = None,
) -> dict[str, Any]:
    """Run a comparison, or what is left of it, and write comparison.json into its folder; only one
    process at a time may do so.

    `place` is where runs take place; `request` is what was typed.
    """
    comparison = Comparison(config, folder, progress, fresh=fresh, place=place, request=request)
    make_folder(folder)
    with only_one_process(folder):
        return comparison.run()
