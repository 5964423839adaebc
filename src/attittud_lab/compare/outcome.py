"""What comes out of the runs of a comparison: tables at equal steps and equal seconds, costs, a decision."""

from __future__ import annotations

import math
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any

from attittud_lab.compare.candidates import Tuned
from attittud_lab.compare.decide import MULTITASK, PRIMARY_ONLY, Scores, decide
from attittud_lab.compare.duration import readable
from attittud_lab.runs.result import RunResult, provenance
from attittud_lab.statistics import LEVEL, summarise

if TYPE_CHECKING:
    from attittud_lab.compare.run import Comparison

ByLabel = dict[str, dict[int, RunResult]]
"""The runs of every strategy that were finished, by seed."""


def content(comparison: Comparison, rows: list[Tuned], at_steps: ByLabel, at_seconds: ByLabel | None) -> dict[str, Any]:
    """Of comparison.json; `rows` are the strategies for which training did not diverge with every setting."""
    settings = comparison.config.compare
    metric = at_steps[PRIMARY_ONLY][comparison.seeds[0]].metric
    multitask = next(row for row in rows if row.label == MULTITASK)
    tables = [
        {
            "name": "Equal steps",
            "about": "every strategy makes the configured number of updates",
            **_table(comparison, at_steps),
        }
    ]
    if at_seconds is not None:
        about = "the budget says" if comparison.budget else "multitask does at equal steps"
        tables.append(
            {
                "name": "Equal seconds",
                "about": f"every strategy trains for about {readable(comparison.seconds)}, as {about}",
                "seconds": comparison.seconds,
                **_table(comparison, at_seconds),
            }
        )
    return {
        "kind": "comparison",
        "metric": metric,
        "level": LEVEL,
        "worthwhile": settings.worthwhile,
        "seeds": comparison.seeds,
        "examples": at_steps[PRIMARY_ONLY][comparison.seeds[0]].examples,
        "tuning": {
            "weights": sorted(set(settings.weights)),
            "space": settings.space,
            "seeds": comparison.tuning_seeds,
            "runs_each": len(multitask.validation) * len(comparison.tuning_seeds),
            "chosen": {row.label: row.variant.weight for row in rows if row.candidate.tuned},
            "changes": {row.label: row.variant.changes for row in rows if row.variant.changes},
            "validation": {
                row.label: [
                    {"weight": v.weight, "mean": mean} | ({"changes": v.changes} if v.changes else {})
                    for v, mean in row.validation.items()
                ]
                for row in rows
                if row.candidate.tuned
            },
        },
        "diverged": [c.label for c in comparison.candidates if c.label not in {row.label for row in rows}],
        "costs": {
            row.label: {
                "seconds_per_step": row.seconds_per_step,
                "to_multitask": row.seconds_per_step / multitask.seconds_per_step,
            }
            for row in rows
        },
        "slow": {
            str(path.relative_to(comparison.folder)): factor
            for path, factor in sorted(comparison.slow().items(), key=lambda found: -found[1])
        },
        "tables": tables,
        # A gain that vanishes when multitask may use the time too is none.
        "decision": tables[-1]["decision"],
        "made_with": provenance(("numpy", "scikit-learn", "scipy")),
    }


def _table(comparison: Comparison, runs: ByLabel) -> dict[str, Any]:
    verdict, folder = decide(_scores(runs), comparison.config.compare.worthwhile), comparison.folder
    rows = []
    for row in verdict.rows:
        results = runs[row.label]
        first = next(iter(results.values()))
        rows.append(
            asdict(row)
            | {
                "steps": {phase["name"]: phase["steps"] for phase in first.phases},
                "seconds": median(result.seconds for result in results.values()),
                "labels": _labels(list(results.values())),
                "values": {
                    str(seed): {"validation": result.validation[result.metric], "test": result.test[result.metric]}
                    for seed, result in results.items()
                },
                "runs": {str(seed): str(result.run_dir.relative_to(folder)) for seed, result in results.items()},
            }
        )
    return {"baseline": verdict.baseline, "rows": rows, "decision": asdict(verdict.decision)}


def _labels(results: list[RunResult]) -> dict[str, dict[str, Any]]:
    """Of several labels at once: mean and interval of each one's figure on test, over the runs in which it is defined."""
    prefix = f"{results[0].metric}/"
    found = {}
    for name in results[0].test:
        if name.startswith(prefix):
            values = [result.test[name] for result in results if not math.isnan(result.test[name])]
            found[name.removeprefix(prefix)] = asdict(summarise(values or [math.nan]))
    return found


def _scores(runs: ByLabel) -> list[Scores]:
    return [
        Scores(
            label,
            {seed: result.validation[result.metric] for seed, result in results.items()},
            {seed: result.test[result.metric] for seed, result in results.items()},
        )
        for label, results in runs.items()
        if results
    ]
