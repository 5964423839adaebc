"""Whole portfolios: rungs, kill and resume, several sources and labels, texts and tables."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import attittud_lab
from attittud_lab.config.load import load, loads
from attittud_lab.config.schema import CandidateConfig, PortfolioConfig
from attittud_lab.data.tasks import Examples, Task
from attittud_lab.errors import InputError
from attittud_lab.output.progress import Progress
from attittud_lab.placing.processes import in_processes
from attittud_lab.portfolio import budget, trial
from attittud_lab.portfolio import run as module
from attittud_lab.portfolio.budget import Plan
from attittud_lab.portfolio.candidates import named
from attittud_lab.portfolio.choose import HeldOut
from attittud_lab.portfolio.run import _cure, _usual, run
from attittud_lab.runs.folder import load_checkpoint
from attittud_lab.training.phase import DivergedError, Phase
from tests.helpers.portfolios import job, killed_at_random, of_patients, outcome, train
from tests.helpers.text_jobs import write_job


class Told(Progress):
    def __init__(self) -> None:
        self.lines = list[str]()

    def say(self, text: str) -> None:
        self.lines.append(text)


def board(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "leaderboard.json").read_text())
    return found


def test_a_portfolio_reports_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG", 0.0)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    told = Told()
    result = train(tmp_path, "portfolio.rungs=[{at: 0.34, keep: 0.25}]", progress=told)
    assert told.lines[0].startswith("4 candidate strategies on 3 folds of the labels take as long as about ")
    assert told.lines[0].endswith(
        ". Training has 2 rungs; after each but the last, only the best candidates and primary_only go on"
    )
    assert told.lines.pop(1).startswith(
        "candidates are ranked by their ranking score: the mean out-of-fold accuracy of "
    )
    assert told.lines.pop(1).startswith("in the names of candidates, ")
    assert told.lines.pop(1) == (
        "this uses one of 4 cores; to train 4 trials at a time, stop now and start again with --workers 4: finished trials "
        "are kept"
    )
    assert (
        told.lines[1].startswith("rung 1 of 2 is over, after 33% of the steps; ")
        and " of 4 candidates" in told.lines[1]
    )
    assert told.lines[2].startswith("chance that ") and "(an early estimate, after rung 1" in told.lines[2]
    assert told.lines[1].endswith(" left in all") and "best so far" not in told.lines[3]
    assert told.lines[3].startswith("rung 2 of 2 is over, after 100% of the steps; the best candidate is ")
    assert len(told.lines) == 4
    found = board(tmp_path)
    first = found["candidates"][0]
    assert first["label"] == found["final"]["winner"]
    scores = f"(ranking score {first['ranking']:.4f}, out-of-fold accuracy {first['score']:.4f})"
    assert told.lines[3].endswith(f"{first['label']} {scores}")
    assert [rung["look"] for rung in found["rungs"]] == [1, 5] and found["version"] == 1
    steps = {row["label"]: (row["steps"], row["rungs"]) for row in found["candidates"]}
    first = found["rungs"][0]["kept"]
    assert "primary_only" in first and len(first) in (1, 2)
    assert all(steps[label] == ((36, 2) if label in first else (12, 1)) for label in steps)
    assert found["final"]["winner"] in first and found["runs"] == sum(s for s, _ in steps.values()) * 3 / 36
    assert result.steps == sum(s for s, _ in steps.values()) * 3 + _chosen(found)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert sum("validation/loss" in line for line in lines) == 6 and any("loss/primary" in line for line in lines)


def _chosen(found: dict[str, Any]) -> int:
    winner = next(row for row in found["candidates"] if row["label"] == found["final"]["winner"])
    return int(winner["best"]["step"]) + (24 if winner["best"]["phase"] == "finetune" else 0)


def test_out_of_fold_predictions_are_recorded(tmp_path: Path) -> None:
    train(tmp_path, "portfolio.rungs=[]")  # all candidates train to the end
    kept, found = load_checkpoint(tmp_path / "out_of_fold.safetensors"), board(tmp_path)
    assert sorted(kept["rows"].tolist()) == list(range(60)) and set(kept["folds"].tolist()) == {0, 1, 2}
    for row in found["candidates"]:
        outputs = kept["candidates"][row["label"]]
        assert row["score"] == pytest.approx(float((outputs.argmax(1) == kept["targets"]).float().mean()))
        assert row["low"] <= row["score"] <= row["high"] and len(row["curve"]["score"]) == row["steps"] // 6
    plain, best = (kept["candidates"][name] for name in ("primary_only", found["worth"]["best"]))
    gain = ((best.argmax(1) == kept["targets"]).float() - (plain.argmax(1) == kept["targets"]).float()).mean()
    assert found["worth"]["difference"] == pytest.approx(float(gain), abs=1e-6)


def test_outputs_that_are_no_longer_needed_are_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[module._Portfolio]()
    original = module._Portfolio.finish
    monkeypatch.setattr(module._Portfolio, "finish", lambda self: (seen.append(self), original(self))[1])
    train(tmp_path, "portfolio.rungs=[{at: 0.34, keep: 0.25}]")
    for label, standing in seen[0].standings.items():
        assert standing.curve is not None and standing.curve.best in standing.looks
        assert len(standing.looks) <= (2 if label == "primary_only" else 1) and standing.outputs.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("final", ["single", "ensemble"])
def test_a_portfolio_killed_anywhere_ends_with_the_same_result(
    final: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write of the run is the last one of some process."""
    changes = [f"portfolio.final={final}", "portfolio.candidates=[multitask]", "portfolio.folds=2"]
    monkeypatch.setattr(trial, "SAVED_EVERY", 0.0)
    train(tmp_path / "whole", *changes)
    from attittud_lab import files

    write, count, kill_at = files.write_atomically, 0, 0

    def killed(path: Path, content: bytes, *rest: str) -> None:
        nonlocal count
        count += 1
        write(path, content, *rest)
        if count > kill_at:
            raise KeyboardInterrupt

    for name in ("files", "runs.folder", "models.network", "portfolio.final"):
        monkeypatch.setattr(f"attittud_lab.{name}.write_atomically", killed)
    tries = 0
    while not (tmp_path / "killed" / "result.json").exists():
        count, kill_at, tries = 0, 1 + tries // 10, tries + 1
        try:
            train(tmp_path / "killed", *changes)
        except KeyboardInterrupt:
            assert tries < 200
    assert tries > 10
    result = run(job(*changes), tmp_path / "killed")
    assert result.skipped
    whole, parts = outcome(tmp_path / "whole"), outcome(tmp_path / "killed")
    for one, other in zip(whole, parts, strict=True):
        assert one == other


KILLS = int(os.environ.get("ATTITTUD_KILLS", "3"))


@pytest.mark.slow
@pytest.mark.parametrize("final", ["single", "ensemble"])
def test_a_portfolio_killed_at_any_moment_ends_with_the_same_result(final: str, tmp_path: Path) -> None:
    """SIGKILL, which no process can see coming. ATTITTUD_KILLS=30 asks for more."""
    changes = [f"portfolio.final={final}", "portfolio.candidates=[multitask]", "portfolio.folds=2"]
    whole, *killed = killed_at_random(tmp_path, *changes, kills=KILLS)
    for folder in killed:
        assert outcome(folder) == outcome(whole)


def test_a_folder_of_another_configuration_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.run_trial
    calls = 0

    def stopped(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(module, "run_trial", stopped)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"another configuration \(portfolio.final"):
        train(tmp_path, "portfolio.final=ensemble")
    train(tmp_path, "portfolio.final=ensemble", fresh=True)
    assert not (tmp_path / "weights.safetensors").exists() and (tmp_path / "member-0.safetensors").exists()
    train(tmp_path, fresh=True)
    assert (tmp_path / "weights.safetensors").exists() and not list(tmp_path.glob("member-*"))


def test_a_continued_run_says_how_much_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, trained = module.run_trial, list[int]()

    def stopped(one: trial.TrialJob, *rest: Any) -> Any:
        trained.append(one.until)
        if len(trained) == 6:
            raise KeyboardInterrupt
        return original(one, *rest)

    monkeypatch.setattr(module, "run_trial", stopped)
    changes = ["portfolio.rungs=[{at: 0.34, keep: 0.25}]", "portfolio.candidates=[multitask]"]
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, *changes)
    plan = Plan.read(tmp_path)
    assert plan is not None
    replace(plan, seconds=100 * plan.runs).write(tmp_path)  # so that a full run takes 100 s
    told = Told()
    train(tmp_path, *changes, progress=told)
    assert " from the beginning. Training has 2 rungs; " in told.lines[0]
    # One trial of this rung is left, a third of a run. Then one or both candidates go on for two thirds, on three folds.
    again = [line for line in told.lines if line.startswith("continuing")]
    (left,) = {budget.left(replace(plan, seconds=100 * plan.runs), 2, 3, job(*changes), 0, 1, 5)}
    assert again == [f"continuing: 5 of 6 trials of rung 1 of 2 are done; about {left} left in all"]
    assert trained[6:].count(12) == 1  # the trials that were done did not run again


def train_until(stops: Callable[[trial.TrialJob], bool], folder: Path, *changes: str) -> None:
    """Interrupt a portfolio before a trial."""
    original = module.run_trial

    def stopped(one: trial.TrialJob, *rest: Any) -> Any:
        if stops(one):
            raise KeyboardInterrupt
        return original(one, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "run_trial", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(folder, *changes)


def test_rungs_that_end_at_the_same_look_continue_nothing(tmp_path: Path) -> None:
    told = Told()
    train(tmp_path, "portfolio.looks=2", "portfolio.candidates=[multitask]", "portfolio.folds=2", progress=told)
    assert [rung["look"] for rung in board(tmp_path)["rungs"]] == [0, 0, 1]
    assert not [line for line in told.lines if line.startswith("continuing")]


def test_a_run_that_stopped_in_the_sum_of_sources_counts_the_whole_rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ["portfolio.rungs=[{at: 0.34, keep: 0.25}]", "portfolio.candidates=[multitask]"]
    extra = named(CandidateConfig(name="multitask", head="own"), job(*changes))
    monkeypatch.setattr(module, "greedy_sum", lambda *_: extra)
    train_until(lambda one: one.candidate == extra and one.fold == 1, tmp_path, *changes)
    plan = Plan.read(tmp_path)
    assert plan is not None
    plan = replace(plan, seconds=100 * plan.runs)  # so that a full run takes 100 s
    plan.write(tmp_path)
    left = budget.left(plan, 3, 3, job(*changes), 0, 1, 7)
    told = Told()
    train(tmp_path, *changes, progress=told)
    again = [line for line in told.lines if line.startswith("continuing")]
    assert again == [f"continuing: 7 of 9 trials of rung 1 of 2 are done; about {left} left in all"]


def test_a_rung_that_an_earlier_process_finished_has_one_line(tmp_path: Path) -> None:
    changes = ["portfolio.rungs=[{at: 0.34, keep: 0.25}]", "portfolio.candidates=[multitask]", "portfolio.folds=2"]
    train_until(lambda one: one.until > 12, tmp_path, *changes)
    told = Told()
    train(tmp_path, *changes, progress=told)
    assert len([line for line in told.lines if "rung 1 of 2" in line]) == 1


def test_few_examples_of_a_large_test_set_are_compared_with_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = (torch.arange(300) > 150).long()  # sorted by class: its first examples are all alike
    task = Task("primary", "classify", ["a", "b"], Examples(torch.zeros(300, 1), targets))
    data = SimpleNamespace(primary=task, test=task.examples)
    portfolio = module._Portfolio.__new__(module._Portfolio)
    portfolio.config, portfolio.data, portfolio.held_out = job(), data, SimpleNamespace(metric="accuracy")
    drawn, original = list[int](), module.Intervals

    def noted(held_out: HeldOut, *rest: Any) -> Any:
        drawn.append(len(held_out.targets))
        return original(held_out, *rest)

    monkeypatch.setattr(module, "Intervals", noted)
    monkeypatch.setattr(module, "MOST_TESTED", 60)
    right = torch.nn.functional.one_hot(targets).float()
    assert portfolio.beats_guess(right) and not portfolio.beats_guess(-right) and drawn == [60, 60]


def test_trials_in_another_place_give_the_same_result(tmp_path: Path) -> None:
    """Trials are independent jobs: any order, any process, and a folder that is brought back."""
    train(tmp_path / "here")

    def elsewhere(jobs: Any) -> Any:
        found = {}
        for one in reversed(jobs):
            away = tmp_path / "away" / one.folder.relative_to(tmp_path)
            if one.folder.exists():
                shutil.copytree(one.folder, away, dirs_exist_ok=True)
            trial._DATA.clear()
            found[one.folder] = trial.run_trial(trial.TrialJob(**vars(one) | {"folder": away}))
            shutil.copytree(away, one.folder, dirs_exist_ok=True)
            shutil.rmtree(away)
        return [found[one.folder] for one in jobs]

    train(tmp_path / "there", execute=elsewhere)
    assert outcome(tmp_path / "here") == outcome(tmp_path / "there")


def test_trials_in_two_processes_give_the_same_result(tmp_path: Path) -> None:
    """An ensemble is trained here; a single model is trained by test_two_workers_give_the_same_result of the command line."""
    train(tmp_path / "here", "portfolio.final=ensemble")
    with in_processes(2) as place:
        train(tmp_path / "there", "portfolio.final=ensemble", place=place)
    assert outcome(tmp_path / "here") == outcome(tmp_path / "there")


def test_diverging_candidates_are_dropped(tmp_path: Path) -> None:
    wild = "portfolio.candidates=[{name: multitask, auxiliary_weight: 1e10, head: own}, multitask]"
    train(
        tmp_path / "some",
        wild,
        "training.guided.clip=null",
        "training.guided.lr=30",
        "training.guided.optimizer=sgd",
        "training.guided.momentum=0",
        "training.finetune.lr=0.001",
    )
    found = {row["label"]: row["diverged"] for row in board(tmp_path / "some")["candidates"]}
    assert found["multitask 1e+10, own head"] and not found["primary_only"]
    with pytest.raises(InputError, match="every candidate of the portfolio diverged"):
        train(tmp_path / "all", "training.guided.lr=1e30", "training.guided.clip=null")


def test_a_candidate_that_diverges_in_its_timed_steps_is_dropped_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Phase._update

    def failing(label: str, why: str) -> Any:
        def update(self: Phase) -> Any:
            if self.job.strategy.name == label and self.name == "guided":
                raise RuntimeError(why)
            return original(self)

        return update

    monkeypatch.setattr(Phase, "_update", failing("pretrain", "overflow"))
    train(tmp_path / "some", "portfolio.folds=2")
    found = {row["label"]: row["diverged"] for row in board(tmp_path / "some")["candidates"]}
    assert "diverged in step 0" in found.pop("pretrain") and not any(found.values()) and len(found) == 3
    monkeypatch.setattr(Phase, "_update", failing("primary_only", "overflow"))
    with pytest.raises(
        InputError, match=r"^primary_only, with which everything is compared: training diverged in .* lower"
    ):
        train(tmp_path / "none", "portfolio.folds=2")
    monkeypatch.setattr(Phase, "_update", failing("pretrain", "a mistake in the program"))
    with pytest.raises(RuntimeError, match="a mistake in the program"):
        train(tmp_path / "error", "portfolio.folds=2")


@pytest.mark.parametrize("final", ["single", "ensemble"])
def test_a_candidate_that_diverges_on_all_labels_is_replaced_alone(
    final: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [f"portfolio.final={final}", "portfolio.members=refit", "portfolio.folds=2", "portfolio.rungs=[]"]
    train(tmp_path / "usual", *changes)
    best, original, told = board(tmp_path / "usual")["final"]["winner"], trial._Trial.run, Told()

    def failing(self: Any) -> None:
        original(self)
        if self.job.fold is None and self.job.candidate.label in diverging:
            raise DivergedError("training diverged")

    monkeypatch.setattr(trial._Trial, "run", failing)
    diverging = [best]
    train(tmp_path / "other", *changes, progress=told)
    found = board(tmp_path / "other")
    assert found["final"]["winner"] != best and best not in found["final"]["picks"]
    assert [row["label"] for row in found["candidates"] if row["diverged"]] == [best]
    assert f"{best} is dropped: in its final training on all labels, training diverged" in told.lines
    diverging = ["primary_only", *(row["label"] for row in found["candidates"])]
    with pytest.raises(InputError, match="the final training of every remaining candidate diverged"):
        train(tmp_path / "none", *changes)


def test_rare_classes_train_and_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for split, counts in {"train": [12, 12, 2], "test": [4, 4, 4]}.items():
        random = np.random.default_rng(len(split))
        rows = [
            (label, random.normal(label, 1, 4).tolist()) for label, count in enumerate(counts) for _ in range(count)
        ]
        folder.mkdir(exist_ok=True)
        table = pa.table({"v": [values for _, values in rows], "label": [f"c{label}" for label, _ in rows]})
        pq.write_table(table, folder / f"{split}.parquet")
    text = f"data: {{kind: table, primary: {{path: {folder}, validation: 0}}}}\nmodel: {{name: table-mlp, width: 8}}\n"
    text += "training: {guided: {steps: 8, primary_batch: 32}, finetune: {steps: 4}}\nstrategy: portfolio\n"
    told = Told()
    run(loads(text), tmp_path / "run", progress=told)
    found = board(tmp_path / "run")
    assert found["not_validated"] == ["c2"] and (found["labels"], found["validated"]) == (26, 24)
    assert "these classes have too few examples to be held out and are used for training only: c2" in told.lines
    assert [row["label"] for row in found["candidates"]] == ["primary_only"] and found["worth"] is None
    assert attittud_lab.load(tmp_path / "run").predict([{"v": [0.0] * 4}])[0] in ("c0", "c1", "c2")


def test_portfolios_work_with_several_labels_groups_and_sources(tmp_path: Path) -> None:
    text = of_patients(tmp_path)
    run(loads(text), tmp_path / "run")
    found = board(tmp_path / "run")
    assert found["metric"] == "auc" and all(0 <= row["score"] <= 1 for row in found["candidates"])
    labels = {row["label"] for row in found["candidates"]}
    assert {"multitask, own head", *(f"multitask, only s{n}" for n in range(4))} <= labels
    kept = load_checkpoint(tmp_path / "run" / "out_of_fold.safetensors")
    config = loads(text)
    groups = trial.pooled_data(config).groups
    assert groups is not None
    homes: dict[str, set[int]] = {}
    for row, fold in zip(kept["rows"].tolist(), kept["folds"].tolist(), strict=True):
        homes.setdefault(groups[row], set()).add(fold)
    assert all(len(folds) == 1 for folds in homes.values()) and len(homes) > 10
    predicted = attittud_lab.load(tmp_path / "run").predict_proba([{"v": [0.1, 0.2, 0.3, 0.4]}])
    assert predicted.shape == (1, 3)


@pytest.mark.parametrize("final", ["single", "ensemble"])
def test_portfolios_work_with_texts_and_an_encoder(final: str, tmp_path: Path) -> None:
    path = write_job(tmp_path)
    config = load(path, ["strategy=portfolio", "portfolio.looks=4", f"portfolio.final={final}"])
    result = run(config, tmp_path / "run")
    found = board(tmp_path / "run")
    assert found["metric"] == "macro_f1" and "multitask" in {row["label"] for row in found["candidates"]}
    data = trial.pooled_data(config)
    assert len(data.primary.examples) == 70 and data.record["auxiliary"]["lm"]["count"] <= 60
    model = attittud_lab.load(tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "labelled.jsonl").read_text().splitlines()]
    tested = [rows[number] for number in data.record["primary"]["test"]["rows"]]
    said = model.predict([row["text"] for row in tested])
    right = [str(row["label"]) == label for row, label in zip(tested, said, strict=True)]
    assert result.test["accuracy"] == pytest.approx(sum(right) / len(right))


def test_held_out_texts_are_never_used_as_masked_texts(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    own = [json.loads(line)["text"] for line in (tmp_path / "labelled.jsonl").read_text().splitlines()]
    with (tmp_path / "plain.jsonl").open("a") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in own)
    data = trial.pooled_data(load(path, ["strategy=portfolio"]))
    assert data.record["auxiliary"]["lm"]["left_out_as_primary"] == len(own)


def test_threads_are_part_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()
    original = trial._Trial.run

    def noted(self: Any) -> None:
        seen.append(torch.get_num_threads())
        original(self)

    monkeypatch.setattr(trial._Trial, "run", noted)
    torch.set_num_threads(2)
    try:
        run(job("portfolio.candidates=[]", "portfolio.folds=2"), tmp_path / "one")
        assert set(seen) == {1} and torch.get_num_threads() == 2
        run(job("portfolio.candidates=[]", "portfolio.folds=2", "training.threads=2"), tmp_path / "two")
        assert set(seen) == {1, 2}
    finally:
        torch.set_num_threads(1)


def test_the_size_of_a_folder_in_which_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial in another process renames a file between the look at its folder and the question for its size."""
    folder = SimpleNamespace(path=tmp_path, trials_path=tmp_path / "trials")
    folder.trials_path.mkdir()
    (tmp_path / "a").write_bytes(bytes(100))
    (tmp_path / ".b.part").symlink_to(tmp_path / "gone")
    monkeypatch.setattr(Path, "is_file", lambda _: True)  # as it was a moment ago
    assert module.peak_size(folder) == 100


def test_the_cure_for_a_model_that_guesses_names_models_that_the_job_accepts() -> None:
    images = SimpleNamespace(kind="image")
    assert _cure(job(), images) == "A pretrained network may help: model=hf:FOLDER or model=timm:NAME."
    assert _cure(job(), SimpleNamespace(kind="text")) == "A pretrained network may help: model=hf:FOLDER."
    assert _cure(job(), SimpleNamespace(kind="table")) == "More labels may help."
    assert _cure(job("model=timm:resnet18"), images) == "More labels may help."
    assert "model=" in _cure(job("model={name: timm:resnet18, pretrained: false}"), images)


def test_the_chance_is_calibrated_for_the_default_portfolio_alone() -> None:
    usual = Plan({"guided": 10}, ["primary_only", "multitask"], 1, 2.0, 1.0)
    assert _usual(PortfolioConfig(), usual)
    assert _usual(PortfolioConfig(folds=5, final="ensemble"), usual)
    assert not _usual(PortfolioConfig(), replace(usual, left_out=["pretrain"]))
    for text in ("looks: 6", "rungs: []", "candidates: [multitask]"):
        assert not _usual(loads(f"portfolio: {{{text}}}").portfolio, usual)


def test_no_two_candidates_share_a_folder(tmp_path: Path) -> None:
    portfolio = module._Portfolio.__new__(module._Portfolio)
    portfolio.folder = SimpleNamespace(trials_path=tmp_path)
    labels = ["primary_only", "multitask, only a + b", "multitask, only a-b", "multitask, only a b"]
    assert len({portfolio.trial(label, 0) for label in labels}) == 4
    assert portfolio.trial("primary_only", None) == tmp_path / "primary_only" / "all"
    assert len(portfolio.trial("multitask, only " + "very long " * 100, 0).parent.name) < 100
