"""Whole comparisons on the embedded digits: equal steps and seconds, tuning, continuation, bad input."""

import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from attittud_lab.compare import run as module
from attittud_lab.compare.run import compare
from attittud_lab.compare.table import notes, show
from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import prepare, split_seed
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Bars, readable
from attittud_lab.report import write_report
from attittud_lab.training.phase import DivergedError
from tests.helpers.comparisons import JOB, Trainings, config, finished, trained
from tests.helpers.jobs import Seen
from tests.helpers.processes import ready_processes

__all__ = ["finished", "trained"]  # fixtures


def test_both_tables_hold_every_strategy(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    assert json.loads((folder / "comparison.json").read_text()) == result
    steps, seconds = result["tables"]
    for table in (steps, seconds):
        assert [row["label"] for row in table["rows"]] == ["primary_only", "multitask", "flip"]
        for row in table["rows"]:
            assert set(row["values"]) == {"0", "1"}
            for seed, path in row["runs"].items():
                kept = json.loads((folder / path / "result.json").read_text())
                assert kept["test"]["accuracy"] == row["values"][seed]["test"] and kept["seed"] == int(seed)
    assert {row["steps"]["guided"] for row in steps["rows"]} == {12}
    assert {row["steps"]["finetune"] for row in (*steps["rows"], *seconds["rows"])} == {4}
    # At equal seconds, dearer steps are fewer.
    costs = {label: cost["seconds_per_step"] for label, cost in result["costs"].items()}
    for row in seconds["rows"]:
        assert row["steps"]["guided"] == max(1, round(12 * costs["multitask"] / costs[row["label"]]))
    assert result["costs"]["multitask"]["to_multitask"] == 1
    assert result["decision"]["outcome"] in ("use", "no_help", "unclear")


def test_only_the_recommended_run_keeps_digests(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of a comparison are many, and digests of millions of examples are large."""
    folder, (chosen, other) = tmp_path / "copy", finished[1]["tables"][0]["rows"][1]["runs"].values()
    shutil.copytree(finished[0], folder)
    shutil.rmtree(folder / other)  # so that a run has to be trained
    monkeypatch.setattr(module, "recommended_run", lambda _: ("0", chosen))
    compare(config(), folder)
    records = {path.parent: json.loads(path.read_text()) for path in folder.rglob("data.json")}
    assert (folder / other) in records
    assert [path for path, record in records.items() if "digests" in record] == [folder / chosen]
    assert records[folder / chosen]["digests"] == prepare(config().data, 0).record["digests"]


def test_weights_are_tuned_on_validation_with_the_same_budget(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, result = finished
    assert result["tuning"]["runs_each"] == 2 and set(result["tuning"]["chosen"]) == {"multitask", "flip"}
    for label, tried in result["tuning"]["validation"].items():
        means = {entry["weight"]: entry["mean"] for entry in tried}
        assert set(means) == {0.3, 1.0}
        chosen = result["tuning"]["chosen"][label]
        assert means[chosen] == max(means.values())
        kept = json.loads((folder / f"runs/{label}/weight-{chosen:g}/steps-12-4/seed-0/result.json").read_text())
        assert kept["validation"]["accuracy"] == means[chosen]
        echo = json.loads((folder / f"runs/{label}/weight-{chosen:g}/steps-12-4/seed-0/run.json").read_text())
        assert echo["config"]["strategy"]["auxiliary_weight"] == chosen


def test_finished_runs_are_skipped(finished: tuple[Path, dict[str, Any]], trained: Trainings) -> None:
    folder, result = finished
    assert compare(config(), folder) == result
    assert trained == []


def test_more_seeds_reuse_existing_runs(
    finished: tuple[Path, dict[str, Any]], trained: Trainings, tmp_path: Path
) -> None:
    folder, result = tmp_path / "copy", finished[1]
    shutil.copytree(finished[0], folder)
    with (bars := Bars()):
        more = compare(config("compare.seeds=3"), folder, bars)
    (runs,) = bars._bars.tasks
    assert runs.completed == runs.total == len(list(folder.rglob("result.json")))
    assert {path.name for path in trained} == {"seed-2"}
    assert [table["rows"][1]["values"]["0"] for table in more["tables"]] == [
        table["rows"][1]["values"]["0"] for table in result["tables"]
    ]


def test_changed_configuration_is_noticed(finished: tuple[Path, dict[str, Any]], trained: Trainings) -> None:
    folder, _ = finished
    with pytest.raises(InputError, match=r"another configuration \(model.width: 8 there, 16 here"):
        compare(config("model.width=16"), folder)
    assert trained == []


def test_an_interrupted_comparison_ends_with_the_same_result(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = finished
    original, done = module.train, []

    def stop(*arguments: Any, **options: Any) -> Any:
        done.append(options["run_dir"])
        if len(done) == 4:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(module, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        compare(config(), tmp_path)
    assert not (tmp_path / "comparison.json").exists()
    again = compare(config(), tmp_path)
    # Seconds are measured, the figures at equal steps are not.
    steps = [{row["label"]: row["values"] for row in found["tables"][0]["rows"]} for found in (expected, again)]
    assert steps[0] == steps[1] and again["tuning"] == expected["tuning"]


def compare_at_equal_steps(folder: Path) -> None:
    """For another process."""
    torch.set_num_threads(1)
    compare(config("compare.equal=steps", "checkpoint_every=3"), folder)


def written(folder: Path) -> int:
    """How many lines of metrics there are."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("metrics.jsonl"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be killed by a signal")
def test_killed_comparisons_end_with_the_same_result(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Killed at random (seeded) moments: the files left are whole, and the same command ends with the same figures."""
    context = ready_processes()
    moments, kills, attempts = random.Random(0), 0, 0
    while kills < 6:
        attempts += 1
        assert attempts < 20, "the comparison is over too early to be killed so often"
        process = context.Process(target=compare_at_equal_steps, args=(tmp_path,))
        before = written(tmp_path)
        process.start()
        if attempts % 2:  # while it trains, however slow the machine is
            while process.is_alive() and written(tmp_path) == before:
                time.sleep(0.005)
            process.join(moments.uniform(0, 0.3))
        else:  # anywhere: while it reads, too
            process.join(moments.uniform(0.05, 0.6))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
        else:  # it was faster than the kill: its last runs are made again
            for path in sorted(tmp_path.rglob("result.json"))[-2:]:
                path.unlink()
        for path in tmp_path.rglob("*.json"):
            json.loads(path.read_text())
    compare_at_equal_steps(tmp_path)
    _, expected = finished
    again = json.loads((tmp_path / "comparison.json").read_text())
    found, wanted = ({row["label"]: row["values"] for row in x["tables"][0]["rows"]} for x in (again, expected))
    assert found == wanted and again["tuning"] == expected["tuning"]
    assert not list(tmp_path.rglob("*.part"))


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Config], float]) -> None:
    """Runs are trained as usual, with made-up times for their steps."""
    original = module.train

    def train(job: Config, **options: Any) -> Any:
        result = original(job, **options)
        guided, *others = result.phases
        phases = [guided | {"seconds": guided["steps"] * seconds(job)}, *(phase | {"seconds": 0.5} for phase in others)]
        return replace(result, phases=phases)

    monkeypatch.setattr(module, "train", train)


def test_runs_that_were_timed_on_a_busy_machine_are_named(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of the strategy comes from its other runs, as long as these are the majority."""
    folder = tmp_path / "compare"
    shutil.copytree(finished[0], folder)
    usual = {"primary_only": 0.01, "multitask": 0.02, "flip": 0.03}
    busy = {("flip", 0.3, 0): 10.0, ("multitask", 1.0, 0): 2.5}

    def seconds(job: Config) -> float:
        key = (job.strategy.name, job.strategy.auxiliary_weight, job.seed)
        return usual[job.strategy.name] * (busy.get(key, 1.0) if job.training.guided.steps == 12 else 1.0)

    timed(monkeypatch, seconds)
    result = compare(config(), folder)
    assert result["slow"] == {
        "runs/flip/weight-0.3/steps-12-4/seed-0": pytest.approx(10),
        "runs/multitask/weight-1/steps-12-4/seed-0": pytest.approx(2.5),
    }
    assert {label: cost["seconds_per_step"] for label, cost in result["costs"].items()} == pytest.approx(usual)
    assert result["tables"][1]["rows"][2]["steps"]["guided"] == 8
    plain = io.StringIO()
    show(result, Console(file=plain), folder / "report.html")
    told = plain.getvalue()
    assert "Warning: in some runs a step took more than 2 times as long" in told
    assert "So the costs and the table at equal seconds are not reliable. Delete the folders of the slow runs" in told
    # The paths can be pasted: they begin where the command was given.
    slow = [folder / path for path in result["slow"]]
    assert all(path.is_dir() for path in slow)
    assert f"{slow[0]} (10.0×), {slow[1]} (2.5×)." in told and f"{slow[0]} (10.0×)" in write_report(folder).read_text()
    many = {**result, "slow": {f"runs/{i}": 3.0 for i in range(9)}}
    steps = {"tables": result["tables"][:1], "decision": result["decision"] | {"table": "Equal steps"}}
    (said,) = (note for note in notes({**many, **steps}, Path("there")) if "not reliable" in note)
    assert said.startswith("The costs are not reliable: ") and "there/runs" not in said  # nothing else depends on time
    said = " ".join(notes(many, Path("there")))
    assert "there/runs/2 (3.0×) and 6 more (`slow` in comparison.json)." in said
    together = [note for note in notes({**result, "at_once": 2}, folder) if "not reliable" in note]
    wrong = "the costs and the table at equal seconds are not reliable."
    assert together == [f"Warning: several runs were trained at a time, so {wrong}"]
    # The cure: without these folders the runs are made again, now in time.
    for path in result["slow"]:
        shutil.rmtree(folder / path)
    busy.clear()
    result = compare(config(), folder)
    assert result["slow"] == {} and "Warning" not in " ".join(notes(result, tmp_path))


def test_diverging_strategies_are_left_out_but_diverging_baselines_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = module.train
    broken = {"flip"}

    def diverge(job: Config, *arguments: Any, **options: Any) -> Any:
        if job.strategy.name in broken:
            raise DivergedError("nan")
        return original(job, *arguments, **options)

    monkeypatch.setattr(module, "train", diverge)
    result = compare(config(), tmp_path)
    assert result["diverged"] == ["flip"]
    assert [row["label"] for row in result["tables"][0]["rows"]] == ["primary_only", "multitask"]
    broken.add("multitask")
    with pytest.raises(InputError, match=r"multitask diverged with every weight.*lower training\.guided\.lr"):
        compare(config(), tmp_path / "again")


def test_a_diverged_run_is_reported_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.train
    unlucky = [1]

    def diverge(job: Config, *arguments: Any, **options: Any) -> Any:
        if job.strategy.name == "flip" and job.seed in unlucky:
            raise DivergedError("nan")
        return original(job, *arguments, **options)

    monkeypatch.setattr(module, "train", diverge)
    result = compare(config(), tmp_path)
    assert "flip diverged with seed 1 at equal steps" in " ".join(notes(result, tmp_path))
    unlucky.clear()  # say, with another version of torch
    assert "flip diverged" not in " ".join(notes(compare(config(), tmp_path), tmp_path))
    assert result["diverged"] == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("compare.strategies=[flipp]", r"Did you mean 'flip'\?"),
        ("compare.strategies=[custom]", "needs its three weights"),
        ("compare.weights=[1]", "at least two different weights"),
        ("compare.weights=[1, -1]", "above 0"),
        ("compare.weights=[1, 0]", "above 0"),
        ("compare.seeds=1", "must be at least 2"),
        ("compare.tuning_seeds=3", "only 2 seeds"),
        ("compare.budget=soon", "write for example 90s"),
        ("compare.seedz=3", "did you mean 'seeds'"),
        ("data.auxiliary={}", "nothing to compare"),
        ("data.primary.test=0", "test: is 0, but test examples give the final score"),
    ],
)
def test_bad_input_is_refused_before_training(tmp_path: Path, override: str, message: str) -> None:
    text = (
        JOB.replace("auxiliary: {more: {path: digits, examples: 300}}", "auxiliary: {}") if "={}" in override else JOB
    )
    overrides = [] if "={}" in override else [override]
    with pytest.raises(InputError, match=message):
        compare(loads(text, overrides), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_forecast_times_the_progress_of_other_processes_over_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of them come at once, and would make steps look as if they took no time."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    seen = Seen()
    forecast = module.Forecast(seen, module._Plan({"flip"}, steps=100, at_budget=(0, None), at_once=2))
    forecast.comparison(4)
    run = forecast.alongside("flip with weight 1, seed 0")
    run.phase("guided", 100, 0)
    for moment in (5.0, 5.0, 5.0, 7.0, 9.0):
        now[0] = moment
        run.advance(10, {})
    (said,) = [event[2] for event in seen.seen if event[1] == "say"]
    # 40 steps in 4 seconds, 4 runs of 100 steps, two at a time.
    assert said == (
        "Forecast: about 20 s for the remaining 4 runs, because a step of flip with weight 1 takes 0.1 s; the next forecast "
        "covers all strategies."
    )


def test_a_long_forecast_says_once_how_to_shorten_the_comparison(tmp_path: Path) -> None:
    seen = Seen()
    shorter = module.Comparison(config("compare.seeds=4"), tmp_path)._shorter()
    for way in ("--quick", "compare.seeds=3", "--workers 2"):
        assert way in shorter
    assert "compare.strategies" not in shorter  # there is only one
    two = config("compare.strategies=[flip, pcgrad]")
    advised = re.search(r"fewer strategies \('(\S+)'\)", module.Comparison(two, tmp_path)._shorter())
    assert advised and [one.name for one in config(advised[1]).compare.strategies] == ["auto"]
    tuned = module.Comparison(
        config("compare.seeds=5", "compare.tuning_seeds=4", "compare.budget=30s"), tmp_path
    )._shorter()
    assert "compare.seeds=4" in tuned and "--quick" not in tuned  # which would be refused with a budget
    small = config()
    assert "compare.seeds" not in module.Comparison(small, tmp_path)._shorter()
    assert "--quick" not in module.Comparison(small, tmp_path, request=module.Request(whole=small))._shorter()
    forecast = module.Forecast(seen, module._Plan({"flip"}, 100, (0, None), 1, shorter))
    for seconds in (module.LONG - 1, module.LONG, module.LONG):
        forecast.measured(seconds, "it is slow")
    assert [event[2].split(":")[0] for event in seen.seen] == ["Forecast", "Forecast", "To shorten it", "Forecast"]


def test_the_advice_is_a_command_with_its_cost(finished: tuple[Path, dict[str, Any]], trained: Trainings) -> None:
    """Two seeds decide nothing; three more are 15 runs: three strategies in one table, and all but multitask in the other."""
    folder, _ = finished
    request = module.Request(("attittud", "compare", "my job.yaml", "compare.seeds=2", "--workers", "2"))
    result = compare(config(), folder, request=request)
    rows = [row for table in result["tables"] for row in table["rows"]]
    each = sum(row["seconds"] for row in rows) / len(rows)
    assert result["next"] == {
        "command": "attittud compare 'my job.yaml' --workers 2 compare.seeds=5",
        "why": f"adds 3 seeds in about {readable(15 * each)} and keeps the finished runs",
    }
    assert trained == [] and "gave_up" not in result


def test_runs_trained_at_a_time_are_remembered(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "compare"
    shutil.copytree(finished[0], folder)
    assert finished[1]["at_once"] == 1
    for earlier, known in ((2, 2), ("damaged", 1)):
        (folder / "comparison.json").write_text(json.dumps(finished[1] | {"at_once": earlier}))
        assert compare(config(), folder)["at_once"] == known


@pytest.mark.parametrize("changes", [(), ("data.test_seed=3",), ("data.subsets=2",)])
def test_more_test_examples_are_advised_where_one_is_worth_more_than_the_difference(
    tmp_path: Path, changes: tuple[str, ...]
) -> None:
    """All runs are equal, since nothing is learned; ten test examples rule out no gain of half a point."""
    still = ["training.guided.lr=1e-30", "training.mode=joint", "compare.equal=steps", "compare.seeds=3"]
    words = [*still, "compare.strategies=[]", "strategy=multitask", "data.primary.test=10", *changes]
    typed = ("attittud", "compare", "job.yaml", *words, "output=there")
    result = compare(config(*words), tmp_path, request=module.Request(typed))
    assert result["decision"]["few_examples"] and result["decision"]["seeds_needed"] is None
    command = shlex.split(result["next"]["command"])
    assert "compare.seeds=3" in command and [word for word in command if word.startswith("output=")] == [
        "output=runs/new-splits"
    ]
    advised = config(*(word for word in command[3:]))
    assert [split_seed(advised.data, seed) for seed in range(3)] == [0, 1, 2] and advised.data.test_seed is None
    # A test split of the source stays the same with every seed.
    for path in tmp_path.rglob("data.json"):
        path.write_text(
            path.read_text().replace('"test": {\n   "source": "', '"test": {\n   "source": "test split of ')
        )
    fixed = compare(config(*words), tmp_path, request=module.Request(typed))
    assert fixed["next"] == {"why": "label more test examples, or raise data.primary.test"}
    # With splits of their own, more seeds test more examples.
    again = compare(advised, tmp_path / "new", request=module.Request(tuple(command)))
    assert not again["decision"]["few_examples"]


def test_early_stopping_is_told(tmp_path: Path) -> None:
    """The learning rate changes nothing: no evaluation is better than the first."""
    still = ["training.guided.lr=1e-30", "training.guided.evaluations=6", "training.guided.patience=2"]
    short = ["training.mode=joint", "compare.equal=steps", "compare.strategies=[]", "strategy=multitask"]
    (table,) = compare(config(*still, *short), tmp_path)["tables"]
    said = (
        "every run makes at most the configured number of updates; early stopping (patience) ended 4 of 4 runs earlier"
    )
    assert table["about"] == said
    assert all(row["steps"]["guided"] < 12 for row in table["rows"])
