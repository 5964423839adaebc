"""From finished runs to comparison.json: tables with intervals, costs, and what was tuned.

`run.py` writes the content when all runs are there; the demo writes the content of its runs too.

    tables     equal steps, then equal seconds: rows as `decide` returns them, with the steps, the
               seconds, the figures and the folder of each run, and the decision of the table
    decision   that of the last table, with the table's name
    tuning     the tries of each strategy, their means on validation, and the chosen ones
    costs      seconds of a step by strategy, also relative to multitask
    examples   how many there are in each split and source
    diverged   strategies without a row
    instead    name and test figure of a simple learner on the primary labels alone, if it was tried

`advice.py` adds what to do next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import filterfalse
from pathlib import Path
from statistics import fmean, median, median_low
from typing import Any

from attittud_lab.compare import words
from attittud_lab.compare.candidates import MULTITASK, PRIMARY_ONLY, Tuned, seeds, tuning_seeds
from attittud_lab.compare.decide import Scores, decide
from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError
from attittud_lab.runs.result import RunResult, provenance
from attittud_lab.statistics import LEVEL, PROPORTION, summarise

VERSION = 2
"""The format of comparison.json."""

ByLabel = dict[str, dict[int, RunResult]]
"""The finished runs of every strategy, by seed."""


def checked(result: RunResult) -> RunResult:
    """Refuse a result from a damaged file, which would stop the comparison hours later."""
    try:
        seconds = seconds_per_step(result)
    except (KeyError, ZeroDivisionError):  # no guided phase, or one without steps
        seconds = 0
    figures = (result.validation[result.metric], result.test[result.metric])
    # A figure may be NaN, which is neither above 1 nor below 0.
    if 0 < seconds < math.inf and not any(value < 0 or value > 1 for value in figures):
        return result
    raise InputError(
        f"{result.run_dir / 'result.json'}: is damaged, or was not written by a run; delete this "
        "folder, and the same command trains the run again"
    )


def seconds_per_step(result: RunResult) -> float:
    """Return the seconds of a step of the guided phase, without evaluations.

    In a portfolio it is a step of its trials.
    """
    phases = {phase["name"]: phase for phase in result.phases}
    guided = phases.get("guided") or phases["trials"]
    return float(guided["seconds"] / guided["steps"])


def costs(runs: Sequence[RunResult]) -> tuple[float, float]:
    """Return the seconds of a guided step, and of all of fine-tuning, from runs of the same work.

    These are medians, the lower of two in the middle: other work on the machine makes a run slower,
    never faster.
    """
    finetune = []
    for run in runs:
        seconds = {phase["name"]: phase["seconds"] for phase in run.phases}
        finetune.append(seconds.get("finetune", 0))
    return median_low(map(seconds_per_step, runs)), median_low(finetune)


def multitask_of(rows: Sequence[Tuned]) -> Tuned:
    """Return the row of multitask, to which costs are relative; it always takes part."""
    return next(row for row in rows if row.label == MULTITASK)


def content(
    config: Config,
    folder: Path,
    rows: Sequence[Tuned],
    at_steps: ByLabel,
    at_seconds: tuple[float, ByLabel] | None = None,
) -> dict[str, Any]:
    """Return comparison.json without a note on diverged runs.

    `rows` are the tuned strategies, and `at_steps` their runs at equal steps. `at_seconds` has the
    seconds that all runs take, and the runs at equal seconds.
    """
    first = at_steps[PRIMARY_ONLY][seeds(config)[0]]
    multitask = multitask_of(rows)
    step_costs = {}
    for row in rows:
        seconds = row.seconds_per_step
        to_multitask = seconds / multitask.seconds_per_step
        step_costs[row.label] = {"seconds_per_step": seconds, "to_multitask": to_multitask}
    at_equal_steps = _table(config, folder, at_steps)
    tables = [{"name": "Equal steps", "about": words.EQUAL_STEPS, **at_equal_steps}]
    if at_seconds is not None:
        budget, runs = at_seconds
        about = words.equal_seconds(budget, by_budget=bool(config.compare.budget))
        named = {"name": "Equal seconds", "about": about, "seconds": budget}
        tables.append({**named, **_table(config, folder, runs)})
    # A gain that vanishes when multitask has the same time is not a gain.
    deciding = tables[-1]
    return {
        "version": VERSION,
        "kind": "comparison",
        "metric": first.metric,
        "level": LEVEL,
        "worthwhile": config.compare.worthwhile,
        "seeds": seeds(config),
        "examples": first.examples,
        "tuning": _tuning(config, rows, most_tries=len(multitask.validation)),
        "diverged": [],
        "costs": step_costs,
        "tables": tables,
        "decision": {**deciding["decision"], "table": deciding["name"]},
        "made_with": provenance(("numpy", "scikit-learn", "scipy")),
    }


def _tuning(config: Config, rows: Sequence[Tuned], *, most_tries: int) -> dict[str, Any]:
    """Return the settings that were tried, their means on validation, and the chosen ones.

    `most_tries` is the number of tries of a strategy with a weight, such as multitask.
    """
    settings = config.compare
    chosen = {}
    changes = {}
    validation = {}
    for row in rows:
        if row.variant.changes:
            changes[row.label] = row.variant.changes
        if row.candidate.tuned:
            chosen[row.label] = row.variant.weight
            validation[row.label] = _tries(row)
    return {
        "weights": sorted(set(settings.weights)),
        "space": settings.space,
        "seeds": tuning_seeds(config),
        "runs_each": most_tries * settings.tuning_seeds,
        "chosen": chosen,
        "changes": changes,
        "validation": validation,
    }


def _tries(row: Tuned) -> list[dict[str, Any]]:
    """Return the tries of a strategy with their means on validation; None where a run diverged."""
    tries = []
    for variant, mean in row.validation.items():
        entry: dict[str, Any] = {"weight": variant.weight, "mean": mean}
        if variant.changes:
            entry["changes"] = variant.changes
        tries.append(entry)
    return tries


def _table(config: Config, folder: Path, runs: ByLabel) -> dict[str, Any]:
    """Return the rows and the decision of a table, from the runs of each strategy.

    A row has the figures of its runs beside those of `decide`. A strategy that diverged with all
    seeds has no row.
    """
    scores = []
    for label, by_seed in runs.items():
        if by_seed:
            validation = {seed: run.validation[run.metric] for seed, run in by_seed.items()}
            test = {seed: run.test[run.metric] for seed, run in by_seed.items()}
            scores.append(Scores(label, validation, test))
    first = next(iter(runs[PRIMARY_ONLY].values()))
    example_worth = _example_worth(config, first)
    table = asdict(decide(scores, config.compare.worthwhile, example_worth))
    for row, score in zip(table["rows"], scores, strict=True):
        by_seed = runs[score.label]
        results = list(by_seed.values())
        row["steps"] = _steps(results)
        row["seconds"] = median(result.seconds for result in results)
        row["labels"] = _labels(results)
        row["values"] = {}
        row["runs"] = {}
        for seed, run in by_seed.items():
            name = str(seed)
            row["values"][name] = {"validation": score.validation[seed], "test": score.test[seed]}
            row["runs"][name] = str(run.run_dir.relative_to(folder))
    return table


def _example_worth(config: Config, run: RunResult) -> float:
    """Return how much one test example changes the mean accuracy over the seeds.

    More seeds with the same test examples cannot measure a difference more finely than this. It is
    0 for other metrics, and where every seed tests other examples, so that more seeds help.
    """
    data = config.data
    count = run.examples["test"]
    new_examples_each_seed = data.seed is None and data.test_seed is None
    if run.metric != "accuracy" or not count or new_examples_each_seed:
        return 0.0
    test_sets = 1
    if data.subsets is not None and data.test_seed is None:  # seeds take turns with so many splits
        test_sets = min(data.subsets, len(seeds(config)))
    return 1 / (count * test_sets)


def _steps(results: list[RunResult]) -> dict[str, int]:
    """Return the mean steps of each phase: patience may end the runs of some seeds earlier."""
    by_phase: dict[str, list[int]] = {}
    for result in results:
        for phase in result.phases:
            by_phase.setdefault(phase["name"], []).append(phase["steps"])
    return {name: round(fmean(steps)) for name, steps in by_phase.items()}


def _labels(results: list[RunResult]) -> dict[str, dict[str, Any]]:
    """Return the test figure of each label where there are several labels at once.

    A label is summarised over the runs in which its figure is defined.
    """
    prefix = f"{results[0].metric}/"
    labels = {}
    for name in results[0].test:
        if name.startswith(prefix):
            figures = (result.test[name] for result in results)
            values = list(filterfalse(math.isnan, figures))
            summary = summarise(values or [math.nan], PROPORTION)
            labels[name.removeprefix(prefix)] = asdict(summary) | {"values": values}
    return labels
