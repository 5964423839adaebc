"""All runs of a comparison: tuning, equal steps, equal seconds. Nothing is kept but run folders, so it can be continued."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol

from attittud.recipes.compare.candidates import Candidate, Steps, candidates, job, run_dir
from attittud.recipes.compare.decide import MULTITASK, PRIMARY_ONLY, Scores, Verdict, decide
from attittud.recipes.compare.duration import parse_duration, readable
from attittud.recipes.config import Config
from attittud.recipes.data.prepare import Prepared
from attittud.recipes.errors import InputError
from attittud.recipes.files import make_folder, without_nan, write_atomically, write_json
from attittud.recipes.loader import dump
from attittud.recipes.phase import DivergedError
from attittud.recipes.progress import Progress, Quiet
from attittud.recipes.provenance import provenance
from attittud.recipes.statistics import LEVEL
from attittud.recipes.train import RunResult, load_data, phase_steps
from attittud.recipes.train import run as train


class Runs(Progress, Protocol):
    """Told about the whole comparison too."""

    def comparison(self, runs: int) -> None:
        """So many runs are planned, finished ones among them; told again when it is known better."""

    def begin(self, what: str) -> None:
        """A run begins."""

    def end(self) -> None:
        """It is finished."""


class QuietRuns(Quiet):
    """Says nothing."""

    def comparison(self, runs: int) -> None:
        pass

    def begin(self, what: str) -> None:
        pass

    def end(self) -> None:
        pass


@dataclass
class Tuned:
    """A strategy with its weight and what a step costs."""

    candidate: Candidate
    weight: float
    validation: dict[float, float | None]
    """Mean metric of every weight over the tuning seeds; None where a run diverged."""
    seconds_per_step: float
    finetune_seconds: float

    @property
    def label(self) -> str:
        return self.candidate.label


@dataclass
class Comparison:
    """One comparison in its folder."""

    config: Config
    folder: Path
    progress: Runs = field(default_factory=QuietRuns)
    fresh: bool = False

    def __post_init__(self) -> None:
        settings = self.config.compare
        self.seeds = [self.config.seed + i for i in range(settings.seeds)]
        self.tuning_seeds = self.seeds[: settings.tuning_seeds]
        self.budget = None if settings.budget is None else parse_duration(settings.budget)
        self.candidates = candidates(self.config)
        self._data: dict[int | None, Prepared] = {}
        self._results: dict[Path, RunResult | None] = {}

    def run(self) -> dict[str, Any]:
        """Everything that is not there yet; returns the content of comparison.json."""
        make_folder(self.folder)
        write_atomically(self.folder / "config.yaml", dump(self.config).encode())
        steps = self._steps()
        self.progress.comparison(self._count())
        rows = self._tune(steps)
        at_steps = {row.label: self._all_seeds(row, steps) for row in rows}
        equal = self._equal_seconds(rows, steps)
        # Where the steps are the same, multitask's for one, there is nothing more to run.
        more = sum(equal[row.label] != steps for row in rows) * len(self.seeds)
        self.progress.comparison(len(self._results) + more)
        at_seconds = {row.label: self._all_seeds(row, equal[row.label]) for row in rows}
        result: dict[str, Any] = without_nan(self._result(rows, at_steps, at_seconds))
        write_json(self.folder / "comparison.json", result)
        return result

    # ------------------------------------------------------------------------------------------------ runs

    def _count(self) -> int:
        tuned = sum(candidate.tuned for candidate in self.candidates)
        more = tuned * (len(self.config.compare.weights) - 1) * len(self.tuning_seeds)
        return more + 2 * len(self.candidates) * len(self.seeds)

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
        key = None if self.config.data.seed is not None else seed
        if key not in self._data:
            self._data = {key: load_data(self.config, seed)}  # one at a time: they may be large
        return self._data[key]

    def _one(self, candidate: Candidate, weight: float, steps: Steps, seed: int) -> RunResult | None:
        """A finished run, trained if need be; None where it diverged."""
        path = run_dir(self.folder, candidate, weight, steps, seed)
        if path not in self._results:
            finished = (path / "result.json").exists() and not self.fresh
            at = f" at {weight:g}" if candidate.tuned else ""
            self.progress.begin(f"{candidate.label}{at}, seed {seed}")
            try:
                self._results[path] = train(
                    job(self.config, candidate, weight, steps),
                    seed,
                    run_dir=path,
                    data=None if finished else self._prepared(seed),
                    progress=self.progress,
                    fresh=self.fresh,
                )
            except DivergedError:
                self._results[path] = None
            self.progress.end()
        return self._results[path]

    def _all_seeds(self, row: Tuned, steps: Steps) -> dict[int, RunResult]:
        found = {seed: self._one(row.candidate, row.weight, steps, seed) for seed in self.seeds}
        return {seed: result for seed, result in found.items() if result is not None}

    def _tune(self, steps: Steps) -> list[Tuned]:
        """Every strategy chooses among the same weights on the same seeds, by its mean on validation."""
        for seed in self.tuning_seeds:  # strategies take turns, so that a busy hour makes none of them look dear
            for candidate in self.candidates:
                for weight in self._weights(candidate):
                    self._one(candidate, weight, steps, seed)
        rows = []
        for candidate in self.candidates:
            scores: dict[float, float | None] = {}
            for weight in self._weights(candidate):
                results = [self._one(candidate, weight, steps, seed) for seed in self.tuning_seeds]
                values = [result.validation[result.metric] for result in results if result is not None]
                scores[weight] = fmean(values) if len(values) == len(results) else None
            finite = {weight: score for weight, score in scores.items() if score is not None}
            if not finite:
                if candidate.label in (PRIMARY_ONLY, MULTITASK):
                    raise InputError(
                        f"{candidate.label} diverged with every weight, so there is nothing to compare with; lower "
                        "training.guided.lr"
                    )
                continue
            # Of equally good weights the one nearest to 1: that is what the strategy was made for.
            weight = max(finite, key=lambda w: (finite[w], -abs(math.log(w))))
            rows.append(Tuned(candidate, weight, scores, *self._costs(candidate, weight, steps)))
        return rows

    def _weights(self, candidate: Candidate) -> list[float]:
        return sorted(set(self.config.compare.weights)) if candidate.tuned else [1.0]

    def _costs(self, candidate: Candidate, weight: float, steps: Steps) -> tuple[float, float]:
        """Median over the tuning seeds alone, so that more seeds later do not change the plan."""
        results = [self._one(candidate, weight, steps, seed) for seed in self.tuning_seeds]
        phases = [{phase["name"]: phase for phase in result.phases} for result in results if result is not None]
        guided = median(phase["guided"]["seconds"] / phase["guided"]["steps"] for phase in phases)
        finetune = median(phase.get("finetune", {"seconds": 0.0})["seconds"] for phase in phases)
        return guided, finetune

    def _equal_seconds(self, rows: list[Tuned], steps: Steps) -> dict[str, Steps]:
        """Steps by label that take as long as multitask's do, or as the budget says.

        A budget stretches both phases by the same factor; within the guided phase every strategy gets the same time.
        """
        multitask = next(row for row in rows if row.label == MULTITASK)
        usual = multitask.seconds_per_step * steps.guided + multitask.finetune_seconds
        factor = 1.0 if self.budget is None else self.budget / usual
        self.seconds = usual * factor
        return {
            row.label: Steps(
                max(1, round(factor * steps.guided * multitask.seconds_per_step / row.seconds_per_step)),
                max(1, round(factor * steps.finetune)) if steps.finetune else 0,
            )
            for row in rows
        }

    # ------------------------------------------------------------------------------------------------ outcome

    def _result(
        self,
        rows: list[Tuned],
        at_steps: Mapping[str, Mapping[int, RunResult]],
        at_seconds: Mapping[str, Mapping[int, RunResult]],
    ) -> dict[str, Any]:
        settings = self.config.compare
        metric = at_steps[PRIMARY_ONLY][self.seeds[0]].metric
        multitask = next(row for row in rows if row.label == MULTITASK)
        by_steps = decide(_scores(at_steps), settings.worthwhile)
        by_seconds = decide(_scores(at_seconds), settings.worthwhile)
        return {
            "kind": "comparison",
            "metric": metric,
            "level": LEVEL,
            "worthwhile": settings.worthwhile,
            "seeds": self.seeds,
            "examples": at_steps[PRIMARY_ONLY][self.seeds[0]].examples,
            "tuning": {
                "weights": self._weights(multitask.candidate),
                "seeds": self.tuning_seeds,
                "runs_each": len(set(settings.weights)) * len(self.tuning_seeds),
                "chosen": {row.label: row.weight for row in rows if row.candidate.tuned},
                "validation": {
                    row.label: [{"weight": w, "mean": v} for w, v in row.validation.items()]
                    for row in rows
                    if row.candidate.tuned
                },
            },
            "diverged": [c.label for c in self.candidates if c.label not in {row.label for row in rows}],
            "costs": {
                row.label: {
                    "seconds_per_step": row.seconds_per_step,
                    "to_multitask": row.seconds_per_step / multitask.seconds_per_step,
                }
                for row in rows
            },
            "tables": [
                {
                    "name": "Equal steps",
                    "about": "every strategy makes the configured number of updates",
                    **self._table(by_steps, at_steps),
                },
                {
                    "name": "Equal seconds",
                    "about": f"every strategy trains for about {readable(self.seconds)}, as "
                    + ("the budget says" if self.budget else "multitask does at equal steps"),
                    "seconds": self.seconds,
                    **self._table(by_seconds, at_seconds),
                },
            ],
            # A gain that vanishes when multitask may use the time too is none.
            "decision": asdict(by_seconds.decision),
            "made_with": provenance(("numpy", "scikit-learn", "scipy")),
        }

    def _table(self, verdict: Verdict, runs: Mapping[str, Mapping[int, RunResult]]) -> dict[str, Any]:
        rows = []
        for row in verdict.rows:
            results = runs[row.label]
            first = next(iter(results.values()))
            rows.append(
                asdict(row)
                | {
                    "steps": {phase["name"]: phase["steps"] for phase in first.phases},
                    "seconds": fmean(result.seconds for result in results.values()),
                    "values": {
                        str(seed): {"validation": result.validation[result.metric], "test": result.test[result.metric]}
                        for seed, result in results.items()
                    },
                    "runs": {
                        str(seed): str(result.run_dir.relative_to(self.folder)) for seed, result in results.items()
                    },
                }
            )
        return {"baseline": verdict.baseline, "rows": rows, "decision": asdict(verdict.decision)}


def _scores(runs: Mapping[str, Mapping[int, RunResult]]) -> list[Scores]:
    return [
        Scores(
            label,
            {seed: result.validation[result.metric] for seed, result in results.items()},
            {seed: result.test[result.metric] for seed, result in results.items()},
        )
        for label, results in runs.items()
        if results
    ]


def compare(config: Config, folder: Path, progress: Runs | None = None, *, fresh: bool = False) -> dict[str, Any]:
    """Run a comparison, or what is left of it, and write comparison.json into its folder."""
    return Comparison(replace(config), folder, progress or QuietRuns(), fresh).run()
