"""A comparison of runs that were never made: figures by strategy and seed, in all the files that a
reader looks at.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attittud_lab.compare.candidates import Budget, Candidate, Tuned, Variant, run_dir
from attittud_lab.compare.content import content
from attittud_lab.config.load import loads
from attittud_lab.config.schema import StrategyConfig
from attittud_lab.files import without_nan
from attittud_lab.runs.result import RunResult

Accuracies = Mapping[str, Sequence[float]]


def made_up(
    folder: Path, at_steps: Accuracies, at_seconds: Accuracies | None = None
) -> dict[str, Any]:
    """Write comparison.json and its runs; the figures are the accuracies on test and on
    validation.
    """
    seeds = max(map(len, at_steps.values()))
    config = loads(f"compare: {{seeds: {seeds}}}\ndata: {{auxiliary: {{x: digits}}}}")
    rows = [
        Tuned(
            Candidate(label, StrategyConfig(name=label), label != "primary_only"),
            Variant(),
            {Variant(): 0.5},
            0.1,
            0.0,
        )
        for label in at_steps
    ]
    later = None if at_seconds is None else (5.0, _runs(folder, at_seconds, 7))
    result: dict[str, Any] = without_nan(
        content(config, folder, rows, _runs(folder, at_steps, 10), later)
    )
    (folder / "comparison.json").write_text(json.dumps(result))
    return result


def _runs(folder: Path, table: Accuracies, steps: int) -> dict[str, dict[int, RunResult]]:
    found: dict[str, dict[int, RunResult]] = {}
    for label, values in table.items():
        for seed, value in enumerate(values):
            candidate = Candidate(label, StrategyConfig(name=label), label != "primary_only")
            path = run_dir(folder, candidate, Variant(), Budget(steps, 0), seed)
            path.mkdir(parents=True)
            lines = [{"phase": "guided", "step": 1, "seconds": 1.0, "loss/primary": 1.0}]
            lines += [
                {
                    "phase": "guided",
                    "step": 1,
                    "seconds": 1.0,
                    "validation/accuracy": value,
                    "validation/loss": 1.0,
                }
            ]
            (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            figures = {"accuracy": value, "loss": 1.0}
            phase = {
                "name": "guided",
                "steps": steps,
                "best_step": steps,
                "seconds": 1.0,
                "stopped": None,
            }
            examples = {"train": 9, "validation": 9, "test": 9}
            found.setdefault(label, {})[seed] = RunResult(
                label, seed, "accuracy", figures, figures, [phase], 1, examples, path
            )
    return found
