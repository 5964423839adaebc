"""All runs of a comparison: tuning, equal steps, equal seconds. Nothing is kept but run folders, so it can be continued."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from attittud_lab.compare.candidates import Candidate, Steps, Tuned, candidates, job, run_dir
from attittud_lab.compare.decide import MULTITASK, PRIMARY_ONLY
from attittud_lab.compare.duration import parse_duration
from attittud_lab.compare.observers import Archive, BusyError, QuietRuns, Runs
from attittud_lab.compare.outcome import ByLabel, content
from attittud_lab.compare.timing import costs, slow
from attittud_lab.compare.variants import Variant, variants
from attittud_lab.config.load import dump
from attittud_lab.config.schema import Config, to_dict
from attittud_lab.data.prepare import Prepared, split_seed
from attittud_lab.errors import InputError
from attittud_lab.files import make_folder, without_nan, write_atomically, write_json
from attittud_lab.runs.result import Diverged, RunResult
from attittud_lab.training.phase import DivergedError, phase_steps
from attittud_lab.training.train import load_data
from attittud_lab.training.train import run as train

KEPT_BYTES = 1 << 30
"""Of data in memory from which on those of other splits are read again when their turn comes."""


@dataclass
class Comparison:
    """One comparison in its folder."""

    config: Config
    folder: Path
    progress: Runs = field(default_factory=QuietRuns)
    fresh: bool = False
    archive: Archive | None = None
    data: dict[str, Prepared] = field(default_factory=dict)
    """What has been read, for several comparisons on the same data."""

    def __post_init__(self) -> None:
        settings = self.config.compare
        self.seeds = [self.config.seed + i for i in range(settings.seeds)]
        self.tuning_seeds = self.seeds[: settings.tuning_seeds]
        self.budget = None if settings.budget is None else parse_duration(settings.budget)
        self.candidates = candidates(self.config)
        self._results: dict[Path, RunResult | None] = {}
        self._same_work: dict[tuple[str, tuple[str, ...], Steps], dict[Path, RunResult]] = {}

    def run(self) -> dict[str, Any]:
        """Everything that is not there yet; returns the content of comparison.json.

        With an archive, `BusyError` says that all the rest is being done by other processes; call it again later.
        """
        make_folder(self.folder, shared=self.archive is not None)  # with an archive other processes may share the work
        write_atomically(self.folder / "config.yaml", dump(self.config).encode())
        steps = self._steps()
        self.progress.comparison(self._count())
        try:
            rows = self._tune(steps)
        except BusyError:
            self._each(self._settled(steps))
            raise
        at_steps = self._all_seeds(rows, {row.label: steps for row in rows})
        equal = self._equal_seconds(rows, steps)
        at_seconds = None
        if self.config.compare.equal == "both":
            # Where the steps are the same, multitask's for one, there is nothing more to run.
            more = sum(equal[row.label] != steps for row in rows) * len(self.seeds)
            self.progress.comparison(len(self._results) + more)
            at_seconds = self._all_seeds(rows, equal)
        result: dict[str, Any] = without_nan(content(self, rows, at_steps, at_seconds))
        write_json(self.folder / "comparison.json", result)
        return result

    def _count(self) -> int:
        tries = sum(len(self._variants(candidate)) - 1 for candidate in self.candidates)
        tables = 2 if self.config.compare.equal == "both" else 1
        return tries * len(self.tuning_seeds) + tables * len(self.candidates) * len(self.seeds)

    def _steps(self) -> Steps:
        """As configured; only epochs need the data for that."""
        training, sources = self.config.training, self.config.data.auxiliary
        phases = [training.guided] if training.mode == "joint" else [training.guided, training.finetune]
        if all(phase.epochs is None for phase in phases):
            return Steps(training.guided.steps, 0 if training.mode == "joint" else training.finetune.steps)
        data = self._prepared(self.seeds[0])
        batches = {name: source.batch_size or training.guided.batch_size for name, source in sources.items()}
        finetune = 0 if training.mode == "joint" else phase_steps("finetune", training.finetune, data, batches)
        return Steps(phase_steps("guided", training.guided, data, batches), finetune)

    def _prepared(self, seed: int) -> Prepared:
        config = self.config
        key = json.dumps([to_dict(config.data), split_seed(config.data, seed), config.model.name])
        if key not in self.data:
            if sum(data.bytes for data in self.data.values()) > KEPT_BYTES:
                self.data.clear()
            self.data[key] = load_data(config, seed, list(self.data.values()))
        return self.data[key]

    def _settled(self, steps: Steps) -> Iterator[tuple[Candidate, Variant, Steps, int]]:
        """Runs that do not depend on the choice that others are still at work for: of strategies without one."""
        for seed in self.seeds:
            for candidate in self.candidates:
                first, *others = self._variants(candidate)
                if not others:
                    yield candidate, first, steps, seed

    def _each(self, runs: Iterable[tuple[Candidate, Variant, Steps, int]]) -> None:
        """Leaves out, and complains about in the end, those that another process is at."""
        busy: BusyError | None = None
        for run in runs:
            try:
                self._one(*run)
            except BusyError as error:
                busy = error
        if busy is not None:
            raise busy

    def _one(self, candidate: Candidate, variant: Variant, steps: Steps, seed: int) -> RunResult | None:
        """A finished run, trained if need be; None where it diverged."""
        path = run_dir(self.folder, candidate, variant, steps, seed)
        if path not in self._results:
            at = f" at {variant.weight:g}" if candidate.tuned else ""
            wanted = replace(job(self.config, candidate, variant, steps), seed=seed)
            kept = self.archive.find(path, wanted) if self.archive else None
            self.progress.begin(f"{candidate.label}{at}, seed {seed}")
            found = self._train(wanted, path) if kept is None else kept
            self._results[path] = found if isinstance(found, RunResult) else None
            if isinstance(found, RunResult):  # whatever its weight and seed
                self._same_work.setdefault((candidate.label, variant.changes, steps), {})[path] = found
            self.progress.end()
        return self._results[path]

    def _train(self, wanted: Config, path: Path) -> RunResult | Diverged:
        finished = (path / "result.json").exists() and not self.fresh
        result: RunResult | Diverged
        try:
            data, started = None if finished else self._prepared(wanted.seed), time.perf_counter()
            try:
                result = train(wanted, run_dir=path, data=data, progress=self.progress, fresh=self.fresh)
            except DivergedError as error:
                result = Diverged(str(error))
            if self.archive:
                self.archive.keep(path, wanted, result, time.perf_counter() - started)
        finally:
            if self.archive:
                self.archive.leave(wanted)
        return result

    def _all_seeds(self, rows: list[Tuned], steps: Mapping[str, Steps]) -> ByLabel:
        """Seed by seed, so that an interrupted comparison has as many runs of one strategy as of another."""
        found: ByLabel = {row.label: {} for row in rows}
        self._each((row.candidate, row.variant, steps[row.label], seed) for seed in self.seeds for row in rows)
        for seed in self.seeds:
            for row in rows:
                result = self._one(row.candidate, row.variant, steps[row.label], seed)
                if result is not None:
                    found[row.label][seed] = result
        for label in (PRIMARY_ONLY, MULTITASK):
            if not found[label]:
                raise _no_baseline(label, "seed")
        return found

    def _tune(self, steps: Steps) -> list[Tuned]:
        """Every strategy chooses among as many tries on the same seeds, by its mean on validation."""
        most = max(len(self._variants(candidate)) for candidate in self.candidates)
        self._each(
            (candidate, variant, steps, seed)
            for seed in self.tuning_seeds
            for number in range(most)  # strategies take turns, so that a busy hour makes none of them look dear
            for candidate in self.candidates
            for variant in self._variants(candidate)[number : number + 1]
        )
        rows = []
        for candidate in self.candidates:
            scores: dict[Variant, float | None] = {}
            losses: dict[Variant, float] = {}
            for variant in self._variants(candidate):
                results = [self._one(candidate, variant, steps, seed) for seed in self.tuning_seeds]
                whole = [result.validation for result in results if result is not None]
                metric = next((result.metric for result in results if result is not None), "")
                scores[variant] = fmean(found[metric] for found in whole) if len(whole) == len(results) else None
                losses[variant] = fmean(found["loss"] for found in whole) if whole else math.inf
            finite = {variant: score for variant, score in scores.items() if score is not None}
            if not finite:
                if candidate.label in (PRIMARY_ONLY, MULTITASK):
                    raise _no_baseline(candidate.label, "weight")
                continue
            # Of equally good weights the one nearest to 1: that is what the strategy was made for. Then by loss.
            best = max(finite, key=lambda v: (finite[v], -abs(math.log(v.weight)), -losses[v]))
            rows.append(Tuned(candidate, best, scores, *self._costs(candidate, best, steps)))
        return rows

    def _variants(self, candidate: Candidate) -> list[Variant]:
        return variants(candidate.strategy, self.config.compare, tuned=candidate.tuned)

    def _costs(self, candidate: Candidate, variant: Variant, steps: Steps) -> tuple[float, float]:
        """From the tuning seeds alone, so that more seeds later do not change the plan.

        With any weight: strategies take turns at all of them, and one that chose the weight of a busy hour is not dearer.
        """
        alike = [other for other in self._variants(candidate) if other.changes == variant.changes]
        results = [self._one(candidate, other, steps, seed) for other in alike for seed in self.tuning_seeds]
        return costs(result for result in results if result is not None)

    def slow(self) -> dict[Path, float]:
        """Runs that were timed while the machine was busy, and how many times as long their steps took."""
        return {path: factor for runs in self._same_work.values() for path, factor in slow(runs).items()}

    def _equal_seconds(self, rows: list[Tuned], steps: Steps) -> dict[str, Steps]:
        """Steps by label that take as long as multitask's do, or as the budget says.

        A budget stretches both phases by the same factor; within the guided phase every strategy gets the same time.
        """
        multitask = next(row for row in rows if row.label == MULTITASK)
        usual = multitask.seconds_per_step * steps.guided + multitask.finetune_seconds
        factor = 1.0 if self.budget is None else self.budget / usual
        self.seconds = usual if self.budget is None else self.budget
        return {
            row.label: Steps(
                max(1, round(factor * steps.guided * multitask.seconds_per_step / row.seconds_per_step)),
                max(1, round(factor * steps.finetune)) if steps.finetune else 0,
            )
            for row in rows
        }


def _no_baseline(label: str, what: str) -> InputError:
    return InputError(
        f"{label} diverged with every {what}, so there is nothing to compare with; lower training.guided.lr"
    )


def compare(config: Config, folder: Path, progress: Runs | None = None, *, fresh: bool = False) -> dict[str, Any]:
    """Run a comparison, or what is left of it, and write comparison.json into its folder."""
    return Comparison(config, folder, progress or QuietRuns(), fresh).run()
