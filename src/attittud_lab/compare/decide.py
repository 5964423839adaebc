"""From finished runs to tables with intervals, and from a table to a decision: the content of comparison.json.

The baseline is primary_only: the question is what the auxiliary data are worth. The best strategy is chosen by its mean on
validation. The test set only says how large the differences are. P-values are Holm-corrected over all rows. This includes
the chosen row: its runs were lucky on validation, and so perhaps on test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, median_low
from typing import Any, Literal

from attittud_lab.compare.candidates import MULTITASK, PRIMARY_ONLY, Tuned, seeds
from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError, counted
from attittud_lab.output.progress import readable
from attittud_lab.runs.result import RunResult, provenance
from attittud_lab.statistics import (
    ALPHA,
    FEWEST,
    LEVEL,
    POWER,
    PROPORTION,
    ROUNDING,
    Difference,
    Summary,
    differences,
    mark,
    seeds_needed,
    summarise,
)

VERSION = 1
"""The format of comparison.json."""
SPREAD = 2.0
"""On an idle machine the times of runs with the same work differ by less than this factor."""
ENOUGH = 5
"""How many seeds to recommend if there are too few for an interval."""
FEW_EXAMPLES = 100
"""With fewer test examples a single one is more than a point of accuracy."""
_LIMITS = {"patience": "early stopping (patience)", "seconds": "the limit of seconds"}

ByLabel = dict[str, dict[int, RunResult]]
"""The finished runs of every strategy, by seed."""


@dataclass(frozen=True)
class Scores:
    """The metric of a strategy's runs, by seed."""

    label: str
    validation: Mapping[int, float]
    test: Mapping[int, float]


@dataclass(frozen=True)
class ComparedRow:
    """A strategy in a table. The difference to itself is None; p-values are Holm-corrected."""

    label: str
    validation: Summary
    test: Summary
    to_primary_only: Difference | None
    to_multitask: Difference | None


@dataclass(frozen=True)
class Decision:
    """What follows from a table."""

    outcome: Literal["use", "no_help", "unclear"]
    strategy: str | None
    """The strategy to use: primary_only if the auxiliary data do not help, None if the outcome is unclear."""
    text: str
    row: str
    """The row to look at: the strategy's row, or the best row on validation if the outcome is unclear."""
    seeds_needed: int | None = None
    """Seeds that would be needed if the outcome is unclear; None if no practical number would do."""
    few_examples: bool = False
    """Whether more test examples are needed to tell, rather than more seeds."""


@dataclass(frozen=True)
class ComparedTable:
    """All strategies at equal steps, or at equal seconds."""

    rows: list[ComparedRow]
    decision: Decision


def decide(scores: Sequence[Scores], worthwhile: float, example: float = 0.0) -> ComparedTable:
    """Compare rows and decide; primary_only and multitask must be among them. `worthwhile` is the smallest useful gain.

    `example` is what a single test example is worth in the metric; 0 where that does not limit what more seeds show.
    """
    tests = {row.label: row.test for row in scores}
    against = {label: differences(tests, label, PROPORTION) for label in (PRIMARY_ONLY, MULTITASK)}
    rows = [
        ComparedRow(
            row.label,
            summarise(list(row.validation.values()), PROPORTION),
            summarise(list(row.test.values()), PROPORTION),
            *(against[label].get(row.label) for label in (PRIMARY_ONLY, MULTITASK)),
        )
        for row in scores
    ]
    return ComparedTable(rows, _decision(rows, worthwhile, example))


def _decision(rows: Sequence[ComparedRow], worthwhile: float, example: float) -> Decision:
    users = [row for row in rows if row.to_primary_only is not None]
    # A row that diverged with some seeds only has the figures of its other, lucky seeds.
    users = [row for row in users if row.test.n == max(other.test.n for other in rows)] or users
    if not users:
        text = "Cannot tell: no strategy has a finished seed in common with primary_only."
        return Decision("unclear", None, text, PRIMARY_ONLY)
    best = max(users, key=lambda row: row.validation.mean)
    gain = best.to_primary_only
    assert gain is not None
    found = f"{best.label}, the strategy with auxiliary data that is best on validation"
    about = f"{found}, differs from primary_only by {points(gain)}"
    if ruled_out(gain, worthwhile):
        text = f"The auxiliary data do not help: {about}, so a gain of {100 * worthwhile:.2g} points is ruled out."
        return Decision("no_help", PRIMARY_ONLY, f"{text} Use primary_only.", PRIMARY_ONLY)
    if not better(gain):
        needed, advice, few = _advice(gain, worthwhile, len(users), example)
        text = f"Cannot tell with {counted(gain.n, 'seed')}: {about}. {advice}"
        return Decision("unclear", None, text, best.label, needed, few)
    extra, gains = best.to_multitask, f"it gains {points(gain)} over primary_only"
    if extra is None:
        text = f"Use multitask: {gains}, and of the strategies with auxiliary data it is the best on validation."
        return Decision("use", MULTITASK, text, MULTITASK)
    if better(extra):
        text = f"Use {best.label}: {gains}, and {points(extra)} over tuned multitask."
        return Decision("use", best.label, text, best.label)
    # The auxiliary data help, but nothing shows that more than the simple sum is needed.
    strategy, simple = best.label, next(row.to_primary_only for row in rows if row.label == MULTITASK)
    unshown = f"Tuned multitask is not shown to gain, and {best.label} is not shown to beat tuned multitask."
    text = f"Use {best.label}: {gains}. {unshown}"
    if simple is not None and better(simple):
        strategy, gains = MULTITASK, f"it gains {points(simple)} over primary_only"
        text = f"Use multitask: {gains}. The strategy that is best on validation is not shown to be better."
    versus = f"{found}, differs from tuned multitask by {points(extra)}."
    _, advice, _ = _advice(extra, worthwhile, len(users) - 1, example)
    return Decision("use", strategy, f"{text} {versus} {advice}", strategy)


def better(difference: Difference) -> bool:
    """Whether a gain is statistically significant, not only measured."""
    return mark(difference.mean, difference.p) == "▲"


def ruled_out(difference: Difference, worthwhile: float) -> bool:
    """Whether the difference is shown to be less than `worthwhile`.

    Coarse figures of a small test set can make all differences the same, so that their interval has no width after a few
    seeds. Then as many seeds are needed as for the sign test.
    """
    enough = difference.std > ROUNDING or 2 * 0.5**difference.n < ALPHA
    return difference.high < worthwhile and enough


def few_examples(count: int, metric: str) -> str:
    """Return a warning if the test set is small, else an empty text."""
    if count >= FEW_EXAMPLES:
        return ""
    one = f" One of them is {100 / count:.1f} points of accuracy." if metric == "accuracy" and count else ""
    found = counted(count, "test example is", "test examples are")
    return f"Warning: {found} few.{one} Small differences can therefore be luck."


def points(difference: Difference) -> str:
    """A difference in points (per cent of the metric), with the interval and the p-value if there are enough seeds.

    Where all seeds agree, an interval of no width would look like certainty, so the text says that they agree.
    """
    mean, low, high = (100 * value for value in (difference.mean, difference.low, difference.high))
    if math.isnan(difference.p):
        return f"{mean:+.1f} points"
    if difference.std <= ROUNDING:
        return f"{mean:+.1f} points (the same with all {difference.n} seeds, p = {difference.p:.2g})"
    return f"{mean:+.1f} points (95 % interval {low:+.1f} to {high:+.1f}, p = {difference.p:.2g})"


def _advice(difference: Difference, worthwhile: float, tests: int, example: float) -> tuple[int | None, str, bool]:
    """Estimate how many seeds would show a gain, or rule out a worthwhile gain, whichever needs fewer.

    Also return the words for it, and whether the test set is too small for any number of seeds.
    """
    if math.isnan(difference.p):
        text = f"Fewer than {FEWEST} seeds do not show how much results vary: raise compare.seeds to at least {ENOUGH}."
        return ENOUGH, text, False
    if difference.mean >= worthwhile / 2:
        size, corrected, about = difference.mean, tests, "About"
        question = f"show a difference of {100 * size:.2g} points"
    else:
        size, corrected = worthwhile - difference.mean, 1
        about = "If the true difference is the measured one, about"
        question = f"rule out a gain of {100 * worthwhile:.2g} points"
    if example > size + ROUNDING:
        one = f"A single test example is worth {100 * example:.1f} points"
        return None, f"{one}, too much to {question}: more test examples are needed, not only more seeds.", True
    needed = seeds_needed(difference.std, size, tests=corrected)
    if needed is None:
        return (
            None,
            f"No practical number of seeds would {question}; more test examples or primary labels might.",
            False,
        )
    needed = max(needed, difference.n + 1)  # the estimate comes from these seeds, so fewer cannot be enough
    cases = f"in {POWER:.0%} of cases (compare.seeds={needed})"
    coarse = " Equal differences can come from a small test set: more test examples would tell more."
    coarse = coarse if difference.std <= ROUNDING else ""
    return needed, f"{about} {needed} seeds would {question}, {cases}.{coarse}", False


# ------------------------------------------------------------------------------------------------------------ the runs


def checked(result: RunResult) -> RunResult:
    """Refuse a result that was read from a damaged file: it would stop the comparison hours later."""
    figures = [result.validation[result.metric], result.test[result.metric]]
    try:
        if 0 < seconds_per_step(result) < math.inf and not any(value < 0 or value > 1 for value in figures):
            return result
    except (ValueError, ZeroDivisionError):  # it has no guided phase, or one without steps
        pass
    cure = "delete this folder, and the same command trains the run again"
    raise InputError(f"{result.run_dir}/result.json: is damaged, or was not written by a run; {cure}")


def seconds_per_step(result: RunResult) -> float:
    """Seconds of a step of the guided phase, without evaluations; in a portfolio, of a step of its trials."""
    (guided,) = (phase for phase in result.phases if phase["name"] in ("guided", "trials"))
    return float(guided["seconds"] / guided["steps"])


def costs(runs: Sequence[RunResult]) -> tuple[float, float]:
    """Seconds of a guided step, and of all of fine-tuning, from runs of the same work.

    These are medians, the lower of two in the middle: other work on the machine makes a run slower, never faster.
    """
    finetune = [sum(phase["seconds"] for phase in run.phases if phase["name"] == "finetune") for run in runs]
    return median_low(map(seconds_per_step, runs)), median_low(finetune)


def slow(runs: Iterable[RunResult]) -> dict[Path, float]:
    """Return the runs whose steps took more than `SPREAD` times as long as in the fastest run of the same work."""
    found = {run.run_dir: seconds_per_step(run) for run in runs}
    fastest = min(found.values(), default=0.0)
    return {path: seconds / fastest for path, seconds in found.items() if seconds > SPREAD * fastest > 0}


# ----------------------------------------------------------------------------------------------------- comparison.json


def content(
    config: Config,
    folder: Path,
    rows: Sequence[Tuned],
    at_steps: ByLabel,
    at_seconds: tuple[float, ByLabel] | None = None,
) -> dict[str, Any]:
    """Return comparison.json without notes on diverged or slow runs; `at_seconds` has the equal seconds and their runs."""
    first = at_steps[PRIMARY_ONLY][seeds(config)[0]]
    multitask = next(row for row in rows if row.label == MULTITASK)
    early = _stopped(at_steps)
    about = "every strategy makes the configured number of updates"
    if early:
        about = f"every run makes at most the configured number of updates; {early}"
    tables = [{"name": "Equal steps", "about": about, **_table(config, folder, at_steps)}]
    if at_seconds is not None:
        seconds, runs = at_seconds
        why = (
            "as the budget says"
            if config.compare.budget
            else "the time that multitask needs for the configured updates"
        )
        early = _stopped(runs)
        about = f"every run trains for {'at most ' if early else ''}about {readable(seconds)}, {why}"
        about = f"{about}; {early}" if early else about
        tables.append({"name": "Equal seconds", "about": about, "seconds": seconds, **_table(config, folder, runs)})
    return {
        "version": VERSION,
        "kind": "comparison",
        "metric": first.metric,
        "level": LEVEL,
        "worthwhile": config.compare.worthwhile,
        "seeds": seeds(config),
        "examples": first.examples,
        "tuning": _tuning(config, rows, len(multitask.validation)),
        "diverged": [],
        "costs": {
            row.label: {
                "seconds_per_step": row.seconds_per_step,
                "to_multitask": row.seconds_per_step / multitask.seconds_per_step,
            }
            for row in rows
        },
        "slow": {},
        "at_once": 1,
        "tables": tables,
        # A gain that vanishes when multitask has the same time is not a gain.
        "decision": {**tables[-1]["decision"], "table": tables[-1]["name"]},
        "made_with": provenance(("numpy", "scikit-learn", "scipy")),
    }


def _stopped(runs: ByLabel) -> str:
    """Say how many runs a limit ended before their last step; empty where none was."""
    every = [run for results in runs.values() for run in results.values()]
    limits = [{str(phase["stopped"]) for phase in run.phases if phase["stopped"]} for run in every]
    names = " or ".join(_LIMITS.get(name, name) for name in sorted({name for found in limits for name in found}))
    return f"{names} ended {sum(map(bool, limits))} of {len(every)} runs earlier" if names else ""


def _tuning(config: Config, rows: Sequence[Tuned], tries: int) -> dict[str, Any]:
    settings = config.compare
    tuning_seeds = seeds(config)[: settings.tuning_seeds]
    weighted = [row for row in rows if row.candidate.tuned]
    return {
        "weights": sorted(set(settings.weights)),
        "space": settings.space,
        "seeds": tuning_seeds,
        "runs_each": tries * len(tuning_seeds),
        "chosen": {row.label: row.variant.weight for row in weighted},
        "changes": {row.label: row.variant.changes for row in rows if row.variant.changes},
        "validation": {
            row.label: [
                {"weight": tried.weight, "mean": mean} | ({"changes": tried.changes} if tried.changes else {})
                for tried, mean in row.validation.items()
            ]
            for row in weighted
        },
    }


def _table(config: Config, folder: Path, runs: ByLabel) -> dict[str, Any]:
    scores = [
        Scores(
            label,
            {seed: run.validation[run.metric] for seed, run in results.items()},
            {seed: run.test[run.metric] for seed, run in results.items()},
        )
        for label, results in runs.items()
        if results
    ]
    table = asdict(decide(scores, config.compare.worthwhile, _worth(config, next(iter(runs[PRIMARY_ONLY].values())))))
    for row, score in zip(table["rows"], scores, strict=True):
        results = list(runs[score.label].values())
        figures = {seed: {"validation": score.validation[seed], "test": score.test[seed]} for seed in score.test}
        row |= {
            "steps": _steps(results),
            "seconds": median(result.seconds for result in results),
            "labels": _labels(results),
            "values": {str(seed): values for seed, values in figures.items()},
            "runs": {str(seed): str(run.run_dir.relative_to(folder)) for seed, run in runs[score.label].items()},
        }
    return table


def _worth(config: Config, run: RunResult) -> float:
    """What a test example is worth in the metric; 0 for other metrics, or if more seeds test more examples."""
    data, count = config.data, run.examples["test"]
    if run.metric != "accuracy" or not count or (data.seed is None and data.test_seed is None):
        return 0.0
    splits = 1 if data.subsets is None or data.test_seed is not None else min(data.subsets, len(seeds(config)))
    return 1 / (count * splits)


def _steps(results: list[RunResult]) -> dict[str, int]:
    """Mean steps of each phase: patience may end the runs of some seeds earlier."""
    found: dict[str, list[int]] = {}
    for phase in (phase for result in results for phase in result.phases):
        found.setdefault(phase["name"], []).append(phase["steps"])
    return {name: round(fmean(steps)) for name, steps in found.items()}


def _labels(results: list[RunResult]) -> dict[str, dict[str, Any]]:
    """With several labels at once: the test figure of each label, over the runs in which it is defined."""
    prefix = f"{results[0].metric}/"
    found = {}
    for name in results[0].test:
        if name.startswith(prefix):
            values = [result.test[name] for result in results if not math.isnan(result.test[name])]
            summary = summarise(values or [math.nan], PROPORTION)
            found[name.removeprefix(prefix)] = asdict(summary) | {"values": values}
    return found
