"""Whole comparisons on the embedded digits: equal steps and seconds, tuning, bad input."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attittud_lab.compare import runs
from attittud_lab.compare.candidates import Budget, Tuned, Variant, candidates
from attittud_lab.compare.run import choose, compare, equal_seconds
from attittud_lab.compare.table import notes
from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError
from attittud_lab.runs.result import RunResult
from attittud_lab.training.phase import DivergedError
from tests.helpers.comparisons import JOB, config, finished, trained

__all__ = ["finished", "trained"]  # fixtures


def test_both_tables_hold_every_strategy(finished):
    folder, result = finished
    assert json.loads((folder / "comparison.json").read_text()) == result
    steps, seconds = result["tables"]
    for table in (steps, seconds):
        assert [row["label"] for row in table["rows"]] == ["primary_only", "multitask", "flip"]
        for row in table["rows"]:
            assert set(row["values"]) == {"0", "1"}
            for seed, path in row["runs"].items():
                stored = json.loads((folder / path / "result.json").read_text())
                assert stored["test"]["accuracy"] == row["values"][seed]["test"]
                assert stored["seed"] == int(seed)
    assert {row["steps"]["guided"] for row in steps["rows"]} == {12}
    assert {row["steps"]["finetune"] for row in (*steps["rows"], *seconds["rows"])} == {4}
    # At equal seconds, dearer steps are fewer.
    costs = {label: cost["seconds_per_step"] for label, cost in result["costs"].items()}
    for row in seconds["rows"]:
        found = row["steps"]["guided"]
        assert found == max(1, round(12 * costs["multitask"] / costs[row["label"]]))
    assert result["costs"]["multitask"]["to_multitask"] == 1
    assert result["decision"]["outcome"] in ("use", "no_help", "unclear")
    # What a user would have used instead, in the terminal and in the report.
    (line,) = [line for line in notes(result) if "a simple learner on the primary" in line]
    assert "histogram, linear, alone" in line
    assert f"{100 * result['instead']['test']:.1f} %" in line


def test_budget_stretches_both_phases():
    rows = [
        Tuned(candidate, Variant(), {}, cost, 6.0)
        for candidate, cost in zip(candidates(config()), (0.5, 2.0, 4.0), strict=True)
    ]
    seconds, budgets = equal_seconds(rows, Budget(12, 4), 3600)
    # Multitask takes 12 * 2 + 6 = 30 s, so an hour is 120 times as much.
    assert seconds == 3600 and budgets["multitask"] == Budget(1440, 480)
    assert budgets["primary_only"] == Budget(5760, 480) and budgets["flip"] == Budget(720, 480)
    seconds, budgets = equal_seconds(rows, Budget(12, 4), None)
    assert (
        seconds == 30 and budgets["multitask"] == Budget(12, 4) and budgets["flip"] == Budget(6, 4)
    )


def test_the_best_try_is_chosen_on_validation_and_ties_go_to_the_weight_nearest_to_one():
    multitask = candidates(config())[1]

    def run(accuracy: float, loss: float) -> RunResult:
        phase = {"name": "guided", "steps": 2, "seconds": 1.0, "stopped": None}
        figures = {"accuracy": accuracy, "loss": loss}
        return RunResult("x", 0, "accuracy", figures, {"accuracy": 0.0}, [phase], 1, {}, Path())

    tries = {
        Variant(0.1): [run(0.8, 1.0)],
        Variant(3.0): [run(0.9, 2.0)],
        Variant(10.0): [run(0.9, 1.0)],
    }
    row = choose(multitask, {**tries, Variant(1.0): [run(1.0, 0.0), None]})
    assert row is not None and row.variant == Variant(3.0) and row.seconds_per_step == 0.5
    expected = {Variant(0.1): 0.8, Variant(3.0): 0.9, Variant(10.0): 0.9, Variant(1.0): None}
    assert row.validation == expected
    with pytest.raises(InputError, match=r"multitask .*training\.guided\.lr"):
        choose(multitask, {Variant(1.0): [None]})


def test_weights_are_tuned_on_validation_with_the_same_budget(finished):
    folder, result = finished
    assert result["tuning"]["runs_each"] == 2 and set(result["tuning"]["chosen"]) == {
        "multitask",
        "flip",
    }
    for label, tries in result["tuning"]["validation"].items():
        means = {entry["weight"]: entry["mean"] for entry in tries}
        assert set(means) == {0.3, 1.0}
        chosen = result["tuning"]["chosen"][label]
        assert means[chosen] == max(means.values())
        run = folder / f"runs/{label}/weight-{chosen:g}/steps-12-4/seed-0"
        stored = json.loads((run / "result.json").read_text())
        assert stored["validation"]["accuracy"] == means[chosen]
        echo = json.loads((run / "run.json").read_text())
        assert echo["config"]["strategy"]["auxiliary_weight"] == chosen


def test_finished_runs_are_skipped(finished, trained):
    folder, result = finished
    assert compare(config(), folder) == result
    assert trained == []
    with pytest.raises(InputError, match=r"model.width: 8 there, 16 here"):
        compare(config("model.width=16"), folder)
    assert trained == []


def test_more_seeds_reuse_existing_runs(finished, trained, tmp_path):
    folder, result = tmp_path / "copy", finished[1]
    shutil.copytree(finished[0], folder)
    more = compare(config("compare.seeds=3"), folder)
    assert {path.name for path in trained} == {"seed-2"}
    found = [table["rows"][1]["values"]["0"] for table in more["tables"]]
    assert found == [table["rows"][1]["values"]["0"] for table in result["tables"]]


def test_strategies_that_diverge_are_left_out_and_tried_again(tmp_path, monkeypatch):
    original = runs.train
    unlucky = {("flip", 1)}

    def diverge(job: Config, *arguments: Any, **options: Any) -> Any:
        if {(job.strategy.name, job.seed), (job.strategy.name, None)} & unlucky:
            raise DivergedError("nan")
        return original(job, *arguments, **options)

    monkeypatch.setattr(runs, "train", diverge)
    result = compare(config(), tmp_path)
    assert "flip diverged with seed 1 at equal steps" in " ".join(notes(result))
    assert result["diverged"] == []
    unlucky.clear()  # say, with another version of torch
    assert "flip diverged" not in " ".join(notes(compare(config(), tmp_path)))
    unlucky.add(("flip", None))
    result = compare(config(), tmp_path / "always")
    assert result["diverged"] == ["flip"]
    assert [row["label"] for row in result["tables"][0]["rows"]] == ["primary_only", "multitask"]


MISTAKES = {
    "compare.strategies=[flipp]": "'flip'",
    "compare.strategies=[custom]": "three weights",
    "compare.weights=[1]": "compare.weights",
    "compare.weights=[1, -1]": "compare.weights",
    "compare.seeds=1": "compare.seeds",
    "compare.tuning_seeds=3": "compare.tuning_seeds",
    "compare.budget=soon": "budget: 'soon'",
    "compare.seedz=3": "compare.seedz.*'seeds'",
    "data.primary.test=0": "test: is 0",
}


def test_bad_input_is_refused_before_training(tmp_path):
    for override, culprit in MISTAKES.items():
        with pytest.raises(InputError, match=culprit):
            compare(loads(JOB, [override]), tmp_path)
    with pytest.raises(InputError, match=r"data\.auxiliary"):
        compare(loads(JOB.replace("{more: {path: digits, examples: 300}}", "{}")), tmp_path)
    assert not list(tmp_path.iterdir())
