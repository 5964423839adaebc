"""All runs of a comparison: tuning, equal steps, equal seconds. Only run folders are kept, so it can be continued."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from attittud_lab.compare.candidates import (
    MULTITASK,
    PRIMARY_ONLY,
    Budget,
    Candidate,
    Tuned,
    Variant,
    candidates,
    job,
    run_dir,
    seeds,
    variants,
)
from attittud_lab.compare.decide import ByLabel, checked, content, costs, slow
from attittud_lab.config.load import dump
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared, split_seed
from attittud_lab.errors import InputError
from attittud_lab.files import make_folder, without_nan, write_atomically, write_json
from attittud_lab.output.progress import Progress, parse_duration, readable
from attittud_lab.runs.result import RunResult
from attittud_lab.strategies import find
from attittud_lab.training.phase import DivergedError, phase_steps
from attittud_lab.training.train import load_data
from attittud_lab.training.train import run as train

KEPT_BYTES = 1 << 30
"""With more data in memory, the data of other splits are dropped, and read again when they are needed."""


class Forecast(Progress):
    """Times the trained runs and forecasts how long the others will take.

    It forecasts after the first steps, and again when every strategy has been run once.
    """

    def __init__(
        self, progress: Progress, labels: Iterable[str], steps: int, at_budget: tuple[int, float | None]
    ) -> None:
        """`steps`: steps of a run. `at_budget`: the number of last runs, at equal seconds, and these seconds if given."""
        self._progress, self._untimed, self._steps, self._at_budget = progress, set(labels), steps, at_budget
        self._label, self._runs, self._left, self._told = "", 0, 0, False
        self._seconds: list[float] = []
        self._warm: float | None = None

    def plan(self, runs: int) -> None:
        """This many runs are planned, including finished ones."""
        self._runs = runs
        self._progress.comparison(runs)

    @contextmanager
    def timed(self, label: str, done: int) -> Iterator[Progress]:
        """Inside, a run of this strategy is trained, after this many others."""
        self._label, self._left, began = label, self._runs - done, time.monotonic()
        yield self
        self._left, seconds = self._left - 1, time.monotonic() - began
        if label in self._untimed:
            self._untimed.remove(label)
            self._seconds.append(seconds)
            if not self._untimed:
                self._tell(fmean(self._seconds), "now that every strategy has been run once")
        if not self._told:
            self._tell(seconds, f"if all are like this one of {label}; the next forecast knows all strategies")

    def _tell(self, seconds: float, reason: str) -> None:
        self._told = True
        at_budget = min(self._left, self._at_budget[0])
        total = (self._left - at_budget) * seconds + at_budget * (self._at_budget[1] or seconds)
        if total > 0:
            self._progress.say(f"Forecast: about {readable(total)} for the {self._left} runs that are left, {reason}.")

    def phase(self, name: str, steps: int, done: int) -> None:
        self._warm = None
        self._progress.phase(name, steps, done)

    def advance(self, steps: int, values: Mapping[str, float]) -> None:
        self._progress.advance(steps, values)
        now = time.monotonic()
        if not self._told and self._warm is not None:
            step = (now - self._warm) / steps
            text = f"as a step of {self._label} takes {step:.2g} s; the next forecast knows all strategies"
            self._tell(step * self._steps, text)
        self._warm = now  # the first steps, in which much is set up, do not count

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._progress.evaluated(values)


class Comparison:
    """One comparison in its folder."""

    def __init__(self, config: Config, folder: Path, progress: Progress | None = None, *, fresh: bool = False) -> None:
        self.config, self.folder, self.progress, self.fresh = config, folder, progress or Progress(), fresh
        settings = config.compare
        self.seeds = seeds(config)
        self.tuning_seeds = self.seeds[: settings.tuning_seeds]
        self.budget_seconds = None if settings.budget is None else parse_duration(settings.budget)
        self.candidates = candidates(config)
        self.variants = {c.label: variants(c.strategy, settings, tuned=c.tuned) for c in self.candidates}
        self._data: dict[str, Prepared] = {}
        self._results: dict[Path, RunResult | None] = {}
        self._same_work: dict[tuple[str, tuple[str, ...], Budget], list[RunResult]] = {}

    def run(self) -> dict[str, Any]:
        """Run everything that is not there yet; returns the content of comparison.json."""
        make_folder(self.folder)
        write_atomically(self.folder / "config.yaml", dump(self.config).encode())
        budget = self.configured_budget()
        self._announce(budget)
        rows = self._tune(budget)
        at_steps = self._all_seeds(rows, {row.label: budget for row in rows})
        seconds, equal = self.equal_seconds(rows, budget)
        at_seconds = None
        if self.config.compare.equal == "both":
            # Where the steps are the same, as for multitask, there is nothing more to run.
            more = sum(equal[row.label] != budget for row in rows) * len(self.seeds)
            self.forecast.plan(len(self._results) + more)
            at_seconds = seconds, self._all_seeds(rows, equal)
        factors = {path: factor for runs in self._same_work.values() for path, factor in slow(runs).items()}
        slowest = sorted(factors, key=lambda path: -factors[path])
        result: dict[str, Any] = without_nan(
            content(self.config, self.folder, rows, at_steps, at_seconds)
            | {"diverged": [label for label in self.variants if label not in at_steps]}
            | {"slow": {str(path.relative_to(self.folder)): factors[path] for path in slowest}}
        )
        write_json(self.folder / "comparison.json", result)
        return result

    def configured_budget(self) -> Budget:
        """The configured steps; only epochs need the data to be counted."""
        training = self.config.training
        phases = {"guided": training.guided} | ({} if training.mode == "joint" else {"finetune": training.finetune})
        data = self.prepared(self.seeds[0]) if any(phase.epochs for phase in phases.values()) else None
        sources = self.config.data.auxiliary.items()
        batches = {name: source.batch_size or training.guided.batch_size for name, source in sources}
        steps = {
            name: phase.steps if data is None else phase_steps(name, phase, data, batches)
            for name, phase in phases.items()
        }
        return Budget(steps["guided"], steps.get("finetune", 0))

    def _announce(self, budget: Budget) -> None:
        """Say how many runs there are. The forecast of their time follows when the first steps have been timed."""
        many = len(self.candidates)
        at_steps = sum(len(tries) - 1 for tries in self.variants.values()) * len(self.tuning_seeds)
        at_steps += many * len(self.seeds)
        at_seconds = many * len(self.seeds) if self.config.compare.equal == "both" else 0
        last = f", {at_seconds} at equal seconds" if at_seconds else ""
        self.progress.say(
            f"{at_steps + at_seconds} runs of {many} strategies: {at_steps} at equal steps, to tune and to compare{last}. "
            "Finished ones are kept."
        )
        if find(self.config.strategy.name).trains_others:
            self.progress.say(
                f"strategy: {self.config.strategy.name} is no row here: it tries strategies itself; `attittud train` does that"
            )
        steps, at_budget = budget.guided + budget.finetune, (at_seconds, self.budget_seconds)
        self.forecast = Forecast(self.progress, self.variants, steps, at_budget)
        self.forecast.plan(at_steps + at_seconds)

    def prepared(self, seed: int) -> Prepared:
        """The data of a seed, kept in memory for the next run that has the same split."""
        config = self.config
        key = json.dumps([to_dict(config.data), split_seed(config.data, seed), config.model.name])
        if key not in self._data:
            if sum(data.bytes for data in self._data.values()) > KEPT_BYTES:
                self._data.clear()
            self._data[key] = load_data(config, seed, list(self._data.values()))
        return self._data[key]

    def _one(self, candidate: Candidate, variant: Variant, budget: Budget, seed: int) -> RunResult | None:
        """A finished run, trained if need be; None where it diverged."""
        path = run_dir(self.folder, candidate, variant, budget, seed)
        if path not in self._results:
            at = f" at {variant.weight:g}" if candidate.tuned else ""
            self.progress.begin(f"{candidate.label}{at}, seed {seed}")
            wanted, found = replace(job(self.config, candidate, variant, budget), seed=seed), None
            with suppress(DivergedError):
                if (path / "result.json").exists() and not self.fresh:
                    found = checked(train(wanted, run_dir=path))
                else:
                    data = self.prepared(seed)
                    with self.forecast.timed(candidate.label, len(self._results)) as progress:
                        found = train(wanted, run_dir=path, data=data, progress=progress, fresh=self.fresh)
            self._results[path] = found
            if found is not None:  # with any weight and seed
                self._same_work.setdefault((candidate.label, variant.changes, budget), []).append(found)
            self.progress.end()
        return self._results[path]

    def _tune(self, budget: Budget) -> list[Tuned]:
        """Every strategy chooses among the same number of tries on the same seeds, by its mean on validation."""
        for seed in self.tuning_seeds:
            # Strategies take turns, so that a busy hour does not make one strategy look slow.
            for number in range(max(map(len, self.variants.values()))):
                for candidate in self.candidates:
                    for variant in self.variants[candidate.label][number : number + 1]:
                        self._one(candidate, variant, budget, seed)
        rows = [self._choose(candidate, budget) for candidate in self.candidates]
        return [row for row in rows if row is not None]

    def _choose(self, candidate: Candidate, budget: Budget) -> Tuned | None:
        """The best try of a strategy; None where all diverged."""
        tries = {
            variant: [self._one(candidate, variant, budget, seed) for seed in self.tuning_seeds]
            for variant in self.variants[candidate.label]
        }
        scores: dict[Variant, float | None] = dict.fromkeys(tries)
        order: dict[Variant, tuple[float, float, float]] = {}
        for variant, results in tries.items():
            whole = [run for run in results if run is not None]
            if len(whole) == len(results):
                score = scores[variant] = fmean(run.validation[run.metric] for run in whole)
                # Among equally good weights take the one nearest to 1, for which the strategy was made; then the lower loss.
                loss = fmean(run.validation["loss"] for run in whole)
                order[variant] = (score, -abs(math.log(variant.weight)), -loss)
        if not order:
            if candidate.label in (PRIMARY_ONLY, MULTITASK):
                raise _no_baseline(candidate.label, "weight")
            return None
        best = max(order, key=lambda variant: order[variant])
        # Costs come from the tuning seeds alone, so that more seeds later do not change the plan, and from runs with any weight:
        # a strategy whose chosen weight was timed on a busy machine does not count as slower.
        alike = [runs for variant, runs in tries.items() if variant.changes == best.changes]
        return Tuned(candidate, best, scores, *costs([run for runs in alike for run in runs if run is not None]))

    def _all_seeds(self, rows: list[Tuned], budgets: Mapping[str, Budget]) -> ByLabel:
        """Run seed by seed, so that an interrupted comparison has equally many runs of every strategy."""
        found: ByLabel = {row.label: {} for row in rows}
        for seed in self.seeds:
            for row in rows:
                result = self._one(row.candidate, row.variant, budgets[row.label], seed)
                if result is not None:
                    found[row.label][seed] = result
        for label in (PRIMARY_ONLY, MULTITASK):
            if not found[label]:
                raise _no_baseline(label, "seed")
        return found

    def equal_seconds(self, rows: list[Tuned], budget: Budget) -> tuple[float, dict[str, Budget]]:
        """The seconds that multitask takes, or the budget, and the steps by label that take as long.

        A budget stretches both phases by the same factor; within the guided phase every strategy gets the same time.
        """
        multitask = next(row for row in rows if row.label == MULTITASK)
        usual = multitask.seconds_per_step * budget.guided + multitask.finetune_seconds
        seconds = usual if self.budget_seconds is None else self.budget_seconds
        factor = seconds / usual
        return seconds, {
            row.label: Budget(
                max(1, round(factor * budget.guided * multitask.seconds_per_step / row.seconds_per_step)),
                max(1, round(factor * budget.finetune)) if budget.finetune else 0,
            )
            for row in rows
        }


def _no_baseline(label: str, what: str) -> InputError:
    return InputError(
        f"{label} diverged with every {what}, so there is nothing to compare with; lower training.guided.lr"
    )


def compare(config: Config, folder: Path, progress: Progress | None = None, *, fresh: bool = False) -> dict[str, Any]:
    """Run a comparison, or what is left of it, and write comparison.json into its folder."""
    return Comparison(config, folder, progress, fresh=fresh).run()
