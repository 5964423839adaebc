"""Whole comparisons on the embedded digits: equal steps and seconds, tuning, continuation, bad input."""

import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.text import Text

from attittud_lab import cli
from attittud_lab.compare import run as module
from attittud_lab.compare.candidates import Budget, Tuned, Variant, candidates
from attittud_lab.compare.run import compare
from attittud_lab.compare.table import notes, show
from attittud_lab.config.load import dump, load, loads
from attittud_lab.config.schema import Config
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Bars
from attittud_lab.report import write_report
from attittud_lab.training.phase import DivergedError

JOB = """
data:
  primary: {path: digits, train: 60, validation: 100, test: 200}
  auxiliary: {more: {path: digits, examples: 300}}
model: {name: mlp, width: 8}
training:
  guided: {steps: 12, evaluations: 2, primary_batch: 16, batch_size: 16, lr: 0.02}
  finetune: {steps: 4, evaluations: 1, primary_batch: 16, lr: 0.01}
strategy: {name: flip, rank: 3}
log_every: 6
compare: {seeds: 2, tuning_seeds: 1, strategies: [flip], weights: [0.3, 1]}
"""


def config(*overrides: str) -> Config:
    return loads(JOB, overrides)


class Trainings(list[Path]):
    """Which runs were trained, as opposed to read."""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    found, original = Trainings(), module.train

    def spy(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if not result.skipped:
            found.append(options["run_dir"])
        return result

    monkeypatch.setattr(module, "train", spy)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("comparison")
    return folder, compare(config(), folder)


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


def test_more_seeds_keep_the_runs_that_are_there(
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


def test_interrupted_comparison_ends_the_same(
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
def test_ten_kills_change_nothing(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Killed at random moments, seeded ones: what is left is whole, and the same command ends with the same figures."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["attittud_lab.compare.run", "torch._dynamo", "sklearn.metrics", "scipy.special"])
    moments, kills, attempts = random.Random(0), 0, 0
    while kills < 10:
        attempts += 1
        assert attempts < 30, "the comparison is over too early to be killed ten times"
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


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found.clear(),
        lambda found: found["phases"].clear(),
        lambda found: found["phases"][0].pop("steps"),
        lambda found: found["phases"][0].update(seconds="long"),
        lambda found: found["phases"][0].update(seconds=0),
        lambda found: found.update(metric="beauty"),
        lambda found: found["test"].pop("accuracy"),
        lambda found: found["test"].update(accuracy=[1]),
        lambda found: found["validation"].update(accuracy=77.5),
        lambda found: found["validation"].update(loss=10**400),
        lambda found: found.update(unknown=1),
    ],
)
def test_damaged_results_of_runs_are_refused(
    spoil: Callable[[dict[str, Any]], None], finished: tuple[Path, dict[str, Any]], trained: Trainings
) -> None:
    path = finished[0] / "runs/multitask/weight-1/steps-12-4/seed-0/result.json"
    text = path.read_text()
    found = json.loads(text)
    spoil(found)
    path.write_text(json.dumps(found))
    try:
        with pytest.raises(InputError, match=r"seed-0/result.json: is not what a run writes"):
            compare(config(), finished[0])
    finally:
        path.write_text(text)
    assert trained == []


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Config], float]) -> None:
    """Runs are trained as usual; then their steps are said to have taken so long."""
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
    """And its cost is that of the others, as long as they are the most."""
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
    show(result, Console(file=plain))
    told = plain.getvalue()
    assert "Warning: a step took more than 2 times as long" in told and "delete their folders and give the same" in told
    assert "runs/flip/weight-0.3/steps-12-4/seed-0 (10.0×), runs/multitask/weight-1/steps-12-4/seed-0 (2.5×):" in told
    assert "runs/flip/weight-0.3/steps-12-4/seed-0 (10.0×)" in write_report(folder).read_text()
    many = {**result, "slow": {f"runs/{i}": 3.0 for i in range(9)}}
    assert "runs/5 (3.0×) and 3 more (`slow` in comparison.json): delete" in " ".join(notes(many))
    # The cure: without these folders the runs are made again, now in time.
    for path in result["slow"]:
        shutil.rmtree(folder / path)
    busy.clear()
    result = compare(config(), folder)
    assert result["slow"] == {} and "Warning" not in " ".join(notes(result))
    assert notes({name: value for name, value in result.items() if name != "slow"}) == notes(result)


def test_budget_stretches_both_phases(tmp_path: Path) -> None:
    comparison = module.Comparison(config("compare.budget=1h"), tmp_path)
    rows = [
        Tuned(candidate, Variant(), {}, cost, 6.0)
        for candidate, cost in zip(comparison.candidates, (0.5, 2.0, 4.0), strict=True)
    ]
    seconds, found = comparison.equal_seconds(rows, Budget(12, 4))
    # Multitask takes 12 * 2 + 6 = 30 s, so an hour is 120 times as much.
    assert seconds == 3600
    assert found["multitask"] == Budget(1440, 480)
    assert found["primary_only"] == Budget(5760, 480) and found["flip"] == Budget(720, 480)


def test_epochs_become_steps(tmp_path: Path) -> None:
    comparison = module.Comparison(config("training.guided.epochs=2", "training.finetune.epochs=3"), tmp_path)
    data = comparison.prepared(0)
    guided = -(-2 * len(data.auxiliary["more"].examples) // 16)
    assert comparison.configured_budget() == Budget(guided, -(-3 * 60 // 16))
    assert module.Comparison(config("training.mode=joint"), tmp_path).configured_budget() == Budget(12, 0)


def test_diverging_strategies_are_left_out_and_baselines_may_not_be(
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


def test_a_run_that_diverged_is_said_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.train
    unlucky = [1]

    def diverge(job: Config, *arguments: Any, **options: Any) -> Any:
        if job.strategy.name == "flip" and job.seed in unlucky:
            raise DivergedError("nan")
        return original(job, *arguments, **options)

    monkeypatch.setattr(module, "train", diverge)
    result = compare(config(), tmp_path)
    assert "flip diverged with seed 1 at equal steps" in " ".join(notes(result))
    unlucky.clear()  # say, with another version of torch
    assert "diverged" not in " ".join(notes(compare(config(), tmp_path)))
    assert result["diverged"] == []


def test_open_settings_come_from_the_configured_strategy() -> None:
    job = config(
        "strategy.refresh_every=4",
        "compare.strategies=[drop_harmful, {name: drop_harmful, rank: 7}, {name: flip, rank: 10}, pcgrad, bloop, flip]",
    )
    found = {candidate.label: candidate.strategy for candidate in candidates(job)}
    assert list(found) == [
        "primary_only",
        "multitask",
        "flip",
        "drop_harmful",
        "drop_harmful rank=7",
        "flip rank=10",
        "pcgrad",
        "bloop",
    ]
    assert (found["drop_harmful"].rank, found["drop_harmful"].refresh_every) == (3, 4)
    assert (found["drop_harmful rank=7"].rank, found["drop_harmful rank=7"].refresh_every) == (7, 4)
    # 10 happens to be the default; the entry says it all the same, and so does what is written down of it.
    assert (found["flip"].rank, found["flip rank=10"].rank) == (3, 10)
    assert dump(job).count("rank: 10") == 1
    assert candidates(loads(dump(job))) == candidates(job)
    # One-sided PCGrad refreshes in every step, whatever the others do.
    assert found["pcgrad"].refresh_every is None and found["multitask"].rank == 10


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
    ],
)
def test_bad_input_costs_no_training(tmp_path: Path, override: str, message: str) -> None:
    text = (
        JOB.replace("auxiliary: {more: {path: digits, examples: 300}}", "auxiliary: {}") if "={}" in override else JOB
    )
    overrides = [] if "={}" in override else [override]
    with pytest.raises(InputError, match=message):
        compare(loads(text, overrides), tmp_path)
    assert not list(tmp_path.iterdir())


def test_tables_and_the_decision_last(finished: tuple[Path, dict[str, Any]]) -> None:
    _, result = finished
    plain = io.StringIO()
    show(result, Console(file=plain))
    lines = plain.getvalue().strip().splitlines()
    assert lines[-1] == f"Decision at equal seconds: {result['decision']['text']}"
    assert "\x1b" not in plain.getvalue()
    for label in ("primary_only", "multitask", "flip"):
        assert sum(line.startswith(f"| {label}") for line in lines) == 2
    # The row that the decision is about is marked, in the table that decided and nowhere else.
    seconds = next(i for i, line in enumerate(lines) if line.startswith("Equal seconds"))
    assert [i > seconds for i, line in enumerate(lines) if line.startswith("|") and "◀" in line] == [True]
    assert any(line.startswith(f"| {result['decision']['row']} ◀") for line in lines)
    assert "edge of the weights tried" in plain.getvalue()  # of two weights either one is
    inner = {**result, "tuning": {**result["tuning"], "weights": [0.01, 0.3, 1.0, 100.0]}}
    assert not any("edge" in note for note in notes(inner))
    for width in (60, 80, 200):
        shown = io.StringIO()
        show(result, Console(file=shown, force_terminal=True, width=width))
        lines = Text.from_ansi(shown.getvalue()).plain.splitlines()
        assert max(map(len, lines)) <= width and not any("…" in line for line in lines)
        assert ("also show std" in " ".join(lines)) == (width < 110) == (" std " not in " ".join(lines[:4]))


# ---------------------------------------------------------------------------------------------------- as one types it


def typed(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


def test_command_with_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    command = [tmp_path / "job.yaml", f"output={tmp_path / 'runs'}", "training.mode=joint", "--budget", "0.05s"]
    code, out, err = typed(*command, capsys=capsys)
    assert code == 0
    result = json.loads((tmp_path / "runs/job/compare/comparison.json").read_text())
    assert out.strip().splitlines()[-1] == f"Decision at equal seconds: {result['decision']['text']}"
    assert result["tables"][1]["seconds"] == 0.05 and "0.05 s, as the budget says" in out
    assert typed(*command, "--quiet", capsys=capsys) == (0, out, "")
    # What is written where there is no terminal: the number of runs, how long they will take, and each of them.
    first, *lines = err.splitlines()
    runs = len(list((tmp_path / "runs").rglob("result.json")))
    assert first.startswith("14 runs of 3 strategies: 8 at equal steps, to tune and to compare, 6 at equal seconds.")
    assert [line for line in lines if "run 1 of 14: primary_only, seed 0" in line] == lines[:1]
    assert sum(" of 14: " in line or f" of {runs}: " in line for line in lines) == runs
    assert sum("validation accuracy" in line for line in lines) == runs
    forecasts = [line for line in lines if line.startswith("Forecast: about ")]
    assert "for the 14 runs that are left, as a step of primary_only takes" in forecasts[0] and forecasts[0] == lines[1]
    assert "11 runs that are left, now that every strategy has been run once" in forecasts[1] and len(forecasts) == 2


def test_command_with_nothing_but_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The proposed configuration is meant for real data; here it only has to be built and changed by overrides."""
    quick = ["training.guided.steps=4", "training.finetune.steps=2", "compare.strategies=[]", "compare.seeds=2"]
    quick += ["compare.weights=[0.5, 1]", "compare.tuning_seeds=1", f"output={tmp_path}", "data.primary.train=60"]
    code, out, err = typed("--primary", "digits", "--auxiliary", "digits", *quick, "--quiet", capsys=capsys)
    assert (code, err) == (0, "")
    assert "| auto" in out  # the proposed strategy
    assert (tmp_path / "digits/compare/comparison.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a CONFIG, or both --primary PATH and --auxiliary PATH"),
        (["--auxiliary", "digits"], "both --primary PATH"),
        (["--primary", "digits"], "--auxiliary PATH"),
        (["job.yaml", "--primary", "digits", "--auxiliary", "digits"], "not both"),
        (["nowhere.yaml"], "nowhere.yaml: cannot read the configuration"),
        (["--primary", "nowhere", "--auxiliary", "digits"], "nowhere: there is no such file or folder"),
        (["--primary", "digits", "--auxiliary", "digits", "--budget", "soon"], "budget: 'soon' is no duration"),
        (["--primary", "digits", "--auxiliary", "digits", "compare.seeds=many"], "a whole number"),
    ],
)
def test_bad_input_is_one_paragraph_and_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = typed(*arguments, capsys=capsys)
    assert (code, out) == (2, "") and message in err
    assert err.startswith("attittud: ") and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_control_c_is_130_and_the_same_command_continues(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    command = [sys.executable, "-m", "attittud", "compare", "job.yaml"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (kept := list(tmp_path.rglob("result.json"))) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    last = err.splitlines()[-1]
    assert process.returncode == 130 and "Traceback" not in err
    assert last.startswith(
        "attittud: interrupted; finished runs are kept in runs/job/compare, the same command goes on"
    )
    assert not list(tmp_path.rglob("comparison.json"))
    before = {path: path.stat().st_mtime_ns for path in kept}
    compare(load(tmp_path / "job.yaml"), tmp_path / "runs/job/compare")
    assert {path: path.stat().st_mtime_ns for path in kept} == before
    assert list(tmp_path.rglob("comparison.json"))


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed("--help", capsys=capsys)
    words = " ".join(out.split())
    assert code == 0
    for word in ("--primary", "--auxiliary", "--budget", "equal training seconds", "runs/CONFIG/compare"):
        assert word in words
