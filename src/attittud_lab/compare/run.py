"""All runs of a comparison: tuning, equal steps, equal seconds. Nothing is kept but run folders, so it can be continued."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, Protocol

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
from attittud_lab.compare.decide import ByLabel, Finished, content, costs, slow
from attittud_lab.compare.progress import Forecast, Runs, parse_duration
from attittud_lab.config.load import dump
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared, split_seed
from attittud_lab.errors import InputError
from attittud_lab.files import make_folder, without_nan, write_atomically, write_json
from attittud_lab.runs.result import Diverged, RunResult
from attittud_lab.training.make_phase import phase_steps
from attittud_lab.training.phase import DivergedError
from attittud_lab.training.train import load_data
from attittud_lab.training.train import run as train

KEPT_BYTES = 1 << 30
"""Data in memory from which on those of other splits are read again when their turn comes."""


class BusyError(Exception):
    """Another process is at this run."""


class Archive(Protocol):
    """Results that outlive their run folders."""

    def find(self, path: Path, config: Config) -> RunResult | Diverged | None:
        """What was kept of a run; one that is to be trained may also be refused, `BusyError` among others."""

    def keep(self, path: Path, config: Config, result: RunResult | Diverged, seconds: float) -> None:
        """A run has ended, after so many seconds."""

    def leave(self, config: Config) -> None:
        """A run that was to be trained is over, whether it was kept or not."""


class PlannedRun(NamedTuple):
    """What a run depends on."""

    candidate: Candidate
    variant: Variant
    budget: Budget
    seed: int

    def __str__(self) -> str:
        at = f" at {self.variant.weight:g}" if self.candidate.tuned else ""
        return f"{self.candidate.label}{at}, seed {self.seed}"


@dataclass
class Trainer:
    """Trains the runs of a comparison that are not there yet, and keeps the results of all."""

    config: Config
    folder: Path
    progress: Runs = field(default_factory=Runs)
    fresh: bool = False
    archive: Archive | None = None
    data: dict[str, Prepared] = field(default_factory=dict)
    """What has been read, for several comparisons on the same data."""
    planned: int = 0
    """Runs of the whole comparison, finished ones among them."""
    forecast: Forecast | None = None

    def __post_init__(self) -> None:
        self.results: dict[Path, RunResult | None] = {}
        self._same_work: dict[tuple[str, tuple[str, ...], Budget], list[RunResult]] = {}

    def plan(self, runs: int) -> None:
        self.planned = runs
        self.progress.comparison(runs)

    def prepared(self, seed: int) -> Prepared:
        config = self.config
        key = json.dumps([to_dict(config.data), split_seed(config.data, seed), config.model.name])
        if key not in self.data:
            if sum(data.bytes for data in self.data.values()) > KEPT_BYTES:
                self.data.clear()
            self.data[key] = load_data(config, seed, list(self.data.values()))
        return self.data[key]

    def each(self, runs: Iterable[PlannedRun]) -> None:
        """Make all runs but those that another process is at; if there are such, raise its `BusyError` in the end."""
        busy: BusyError | None = None
        for run in runs:
            try:
                self.one(run)
            except BusyError as error:
                busy = error
        if busy is not None:
            raise busy

    def one(self, run: PlannedRun) -> RunResult | None:
        """A finished run, trained if need be; None where it diverged."""
        path = run_dir(self.folder, *run)
        if path not in self.results:
            wanted = replace(job(self.config, run.candidate, run.variant, run.budget), seed=run.seed)
            kept = self.archive.find(path, wanted) if self.archive else None
            self.progress.begin(str(run))
            found = self._train(wanted, path, run.candidate.label) if kept is None else kept
            self.results[path] = found if isinstance(found, RunResult) else None
            if isinstance(found, RunResult):  # whatever its weight and seed
                work = (run.candidate.label, run.variant.changes, run.budget)
                self._same_work.setdefault(work, []).append(found)
            self.progress.end()
        return self.results[path]

    def _train(self, wanted: Config, path: Path, label: str) -> RunResult | Diverged:
        finished = (path / "result.json").exists() and not self.fresh
        timed = None if finished else self.forecast
        result: RunResult | Diverged
        try:
            data, started = None if finished else self.prepared(wanted.seed), time.perf_counter()
            if timed:
                timed.begin(label, self.planned - len(self.results))
            try:
                result = train(wanted, run_dir=path, data=data, progress=timed or self.progress, fresh=self.fresh)
                if timed:
                    timed.end()
            except DivergedError as error:
                result = Diverged(str(error))
            if self.archive:
                self.archive.keep(path, wanted, result, time.perf_counter() - started)
        finally:
            if self.archive:
                self.archive.leave(wanted)
        return result

    def slow(self) -> dict[Path, float]:
        """Runs that were timed while the machine was busy, and how many times as long their steps took."""
        return {path: factor for runs in self._same_work.values() for path, factor in slow(runs).items()}


class Comparison:
    """One comparison in its folder."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        progress: Runs | None = None,
        *,
        fresh: bool = False,
        archive: Archive | None = None,
        data: dict[str, Prepared] | None = None,
    ) -> None:
        """`data` has what was read before, for several comparisons on the same data."""
        self.config, self.folder, settings = config, folder, config.compare
        self.seeds = seeds(config)
        self.tuning_seeds = self.seeds[: settings.tuning_seeds]
        self.budget_seconds = None if settings.budget is None else parse_duration(settings.budget)
        self.candidates = candidates(config)
        self.variants = {c.label: variants(c.strategy, settings, tuned=c.tuned) for c in self.candidates}
        self.trainer = Trainer(config, folder, progress or Runs(), fresh, archive, {} if data is None else data)

    def run(self) -> dict[str, Any]:
        """Everything that is not there yet; returns the content of comparison.json.

        With an archive, `BusyError` says that all the rest is being done by other processes; call it again later.
        """
        trainer, shared = self.trainer, self.trainer.archive is not None
        make_folder(self.folder, shared=shared)  # with an archive other processes may share the work
        write_atomically(self.folder / "config.yaml", dump(self.config).encode())
        budget = self.configured_budget()
        self._announce(budget)
        try:
            rows = self._tune(budget)
        except BusyError:
            trainer.each(self._settled(budget))
            raise
        at_steps = self._all_seeds(rows, {row.label: budget for row in rows})
        seconds, equal = self.equal_seconds(rows, budget)
        at_seconds = None
        if self.config.compare.equal == "both":
            # Where the steps are the same, multitask's for one, there is nothing more to run.
            more = sum(equal[row.label] != budget for row in rows) * len(self.seeds)
            trainer.plan(len(trainer.results) + more)
            at_seconds = self._all_seeds(rows, equal)
        kept = {row.label for row in rows}
        diverged = [candidate.label for candidate in self.candidates if candidate.label not in kept]
        found = Finished(self.config, self.folder, rows, diverged, at_steps, at_seconds, seconds, trainer.slow())
        result: dict[str, Any] = without_nan(content(found))
        write_json(self.folder / "comparison.json", result)
        return result

    def _announce(self, budget: Budget) -> None:
        """How many runs there are; how long they take is said when the first steps have been timed."""
        trainer, many = self.trainer, len(self.candidates)
        tuning = sum(len(tries) - 1 for tries in self.variants.values()) * len(self.tuning_seeds)
        at_seconds = many * len(self.seeds) if self.config.compare.equal == "both" else 0
        trainer.plan(tuning + many * len(self.seeds) + at_seconds)
        if trainer.archive is not None:  # whoever keeps results for several comparisons has a clock of its own
            return
        last = f", {at_seconds} at equal seconds" if at_seconds else ""
        trainer.progress.say(
            f"{trainer.planned} runs of {many} strategies: {tuning + many * len(self.seeds)} at equal steps, to tune and to "
            f"compare{last}. Finished ones are kept."
        )
        trainer.forecast = Forecast(
            trainer.progress, self.variants, budget.guided + budget.finetune, (at_seconds, self.budget_seconds)
        )

    def configured_budget(self) -> Budget:
        """Only epochs need the data for that."""
        training, sources = self.config.training, self.config.data.auxiliary
        joint = training.mode == "joint"
        if training.guided.epochs is None and (joint or training.finetune.epochs is None):
            return Budget(training.guided.steps, 0 if joint else training.finetune.steps)
        data = self.trainer.prepared(self.seeds[0])
        batches = {name: source.batch_size or training.guided.batch_size for name, source in sources.items()}
        finetune = 0 if joint else phase_steps("finetune", training.finetune, data, batches)
        return Budget(phase_steps("guided", training.guided, data, batches), finetune)

    def _settled(self, budget: Budget) -> Iterator[PlannedRun]:
        """Runs that do not depend on the choice that others are still at work for: of strategies without one."""
        for seed in self.seeds:
            for candidate in self.candidates:
                first, *others = self.variants[candidate.label]
                if not others:
                    yield PlannedRun(candidate, first, budget, seed)

    def _all_seeds(self, rows: list[Tuned], budgets: Mapping[str, Budget]) -> ByLabel:
        """Seed by seed, so that an interrupted comparison has as many runs of one strategy as of another."""
        runs = [PlannedRun(row.candidate, row.variant, budgets[row.label], seed) for seed in self.seeds for row in rows]
        self.trainer.each(runs)
        found: ByLabel = {row.label: {} for row in rows}
        for run in runs:
            result = self.trainer.one(run)
            if result is not None:
                found[run.candidate.label][run.seed] = result
        for label in (PRIMARY_ONLY, MULTITASK):
            if not found[label]:
                raise _no_baseline(label, "seed")
        return found

    def _tune(self, budget: Budget) -> list[Tuned]:
        """Every strategy chooses among as many tries on the same seeds, by its mean on validation."""
        self.trainer.each(
            PlannedRun(candidate, variant, budget, seed)
            for seed in self.tuning_seeds
            # Strategies take turns, so that a busy hour makes none of them look dear.
            for number in range(max(map(len, self.variants.values())))
            for candidate in self.candidates
            for variant in self.variants[candidate.label][number : number + 1]
        )
        rows = [self._choose(candidate, budget) for candidate in self.candidates]
        return [row for row in rows if row is not None]

    def _choose(self, candidate: Candidate, budget: Budget) -> Tuned | None:
        """The best try of a strategy; None where all diverged."""
        scores: dict[Variant, float | None] = {}
        order: dict[Variant, tuple[float, float, float]] = {}
        runs = {
            variant: [self.trainer.one(PlannedRun(candidate, variant, budget, seed)) for seed in self.tuning_seeds]
            for variant in self.variants[candidate.label]
        }
        for variant, results in runs.items():
            whole = [run for run in results if run is not None]
            scores[variant] = None
            if len(whole) == len(results):
                score = scores[variant] = fmean(run.validation[run.metric] for run in whole)
                # Of equally good weights the one nearest to 1: that is what the strategy was made for. Then by loss.
                loss = fmean(run.validation["loss"] for run in whole)
                order[variant] = (score, -abs(math.log(variant.weight)), -loss)
        if not order:
            if candidate.label in (PRIMARY_ONLY, MULTITASK):
                raise _no_baseline(candidate.label, "weight")
            return None
        best = max(order, key=lambda variant: order[variant])
        # From the tuning seeds alone, so that more seeds later do not change the plan. With any weight: strategies take
        # turns at all of them, and a run that was timed on a busy machine does not count.
        alike = [
            run for other, tried in runs.items() if other.changes == best.changes for run in tried if run is not None
        ]
        return Tuned(candidate, best, scores, *costs(alike))

    def equal_seconds(self, rows: list[Tuned], budget: Budget) -> tuple[float, dict[str, Budget]]:
        """Seconds that multitask takes, or that the budget says, and the steps by label that take as long.

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


def compare(config: Config, folder: Path, progress: Runs | None = None, *, fresh: bool = False) -> dict[str, Any]:
    """Run a comparison, or what is left of it, and write comparison.json into its folder."""
    return Comparison(config, folder, progress, fresh=fresh).run()
