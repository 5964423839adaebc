"""The tables of a comparison and what is printed with them."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from scipy import stats

from attittud_lab.compare.candidates import Budget, Candidate, Tuned, Variant, run_dir
from attittud_lab.compare.content import content
from attittud_lab.compare.table import notes, show
from attittud_lab.config.load import loads
from attittud_lab.config.schema import StrategyConfig
from attittud_lab.files import without_nan
from attittud_lab.report.outcome import outcome
from attittud_lab.runs.result import RunResult
from attittud_lab.statistics import ALPHA

Accuracies = Mapping[str, Sequence[float]]


def made_up(
    folder: Path, at_steps: Accuracies, at_seconds: Accuracies | None = None
) -> dict[str, Any]:
    """Write comparison.json and its runs, with the same accuracies on test and validation."""
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


def shown(result: dict[str, object]) -> list[str]:
    plain = io.StringIO()
    show(result, Console(file=plain))
    return plain.getvalue().splitlines()


def row_of(lines: list[str], label: str, table: int) -> dict[str, str]:
    """The cells of a row in the terminal's table number `table`, by their headings."""
    heads = [i for i, line in enumerate(lines) if line.startswith("| strategy")]
    found = next(line for line in lines[heads[table] :] if line.startswith(f"| {label} "))
    return dict(
        zip(
            *(
                [cell.strip() for cell in line.split("|")[1:-1]]
                for line in (lines[heads[table]], found)
            ),
            strict=True,
        )
    )


GAIN = [0.80, 0.81, 0.82, 0.80]
LOSS = [0.60, 0.61, 0.63, 0.60]
BASE = [0.70, 0.71, 0.72, 0.71]


def test_the_same_table_decides_in_every_output(tmp_path):
    """flip gains at equal steps and loses at equal seconds, which decide."""
    steps = {"primary_only": BASE, "multitask": [0.5] * 4, "flip": GAIN}
    seconds = {"primary_only": BASE, "multitask": [0.5] * 4, "flip": LOSS}
    result = made_up(tmp_path, steps, seconds)
    decision = result["decision"]
    expected = ("Equal seconds", "no_help", "primary_only")
    assert (decision["table"], decision["outcome"], decision["row"]) == expected
    assert result["tables"][0]["decision"]["outcome"] == "use"
    lines = shown(result)
    decided = outcome(tmp_path)
    assert (decided.about, decided.text) == ("Decision at equal seconds", decision["text"])
    found = [line.split("|")[1].strip() for line in lines if "◀" in line and line.startswith("|")]
    assert found == ["primary_only ◀"]
    assert row_of(lines, "primary_only", 1)["strategy"] == "primary_only ◀"
    assert row_of(lines, "flip", 0)["difference"] == "▲ +9.8"
    assert row_of(lines, "flip", 1)["difference"] == "▼ -10.0"
    assert any(
        line.startswith("At equal steps alone the decision would be: Use flip") for line in lines
    )
    alone = made_up(tmp_path / "steps", steps)
    assert alone["decision"]["table"] == "Equal steps"
    decided = outcome(tmp_path / "steps")
    assert decided.about == "Decision at equal steps" and decided.text.startswith("Use flip")


def test_marks_follow_the_corrected_p_values(tmp_path):
    """Eight rows of the same small gain: each would be significant alone, none is among eight."""
    base = [0.70, 0.72, 0.71, 0.70, 0.72]
    gain = [value + more for value, more in zip(base, (0.05, 0.02, 0.06, 0.01, 0.04), strict=True)]
    rows = {
        "primary_only": base,
        "multitask": [0.5] * 5,
        **{f"flip rank={i}": gain for i in range(8)},
    }
    assert stats.ttest_rel(gain, base).pvalue < ALPHA
    result = made_up(tmp_path, rows)
    difference = result["tables"][0]["rows"][2]["to_primary_only"]
    assert difference["low"] > 0 and difference["p"] > ALPHA  # the interval is about this row alone
    cells = row_of(shown(result), "flip rank=0", 0)
    assert cells["difference"] == "= +3.6" and float(cells["p"]) > ALPHA
    alone = made_up(
        tmp_path / "alone",
        {label: rows[label] for label in ("primary_only", "multitask", "flip rank=0")},
    )
    assert row_of(shown(alone), "flip rank=0", 0)["difference"] == "▲ +3.6"


def test_a_row_that_lost_seeds_shows_the_remaining_seeds(tmp_path):
    result = made_up(tmp_path, {"primary_only": BASE, "multitask": LOSS, "flip": [0.8, 0.9]})
    cells = row_of(shown(result), "flip", 0)
    assert cells["95 %"] == "80.0 / 90.0"
    assert cells["its 95 %"] == "+10.0 / +19.0"
    assert cells["p"] == "–"
    assert row_of(shown(result), "multitask", 0)["95 %"].count(" to ") == 1
    assert any("flip diverged with seed 2, 3" in note for note in notes(result))
