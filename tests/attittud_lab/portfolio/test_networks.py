"""The networks of a portfolio: rungs, trials elsewhere, stops and continuations, and candidates
that diverge.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attittud_lab.errors import InputError
from attittud_lab.portfolio import networks, trial
from attittud_lab.portfolio.budget import Plan
from attittud_lab.portfolio.networks import Networks
from attittud_lab.portfolio.pace import Pace
from attittud_lab.runs.folder import load_checkpoint
from attittud_lab.training.phase import DivergedError
from tests.helpers.portfolios import Told, board, job, outcome, train

RUNGS = "portfolio.rungs=[{at: 0.34, keep: 0.25}]"
TWO = ["portfolio.candidates=[multitask]", "portfolio.folds=2"]


def rows_by_label(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in board(folder)["candidates"]}


def test_rungs_stop_the_worst_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Networks]()
    monkeypatch.setattr(
        Networks, "refit", lambda self, labels: seen.append(self) or refit(self, labels)
    )
    result = train(tmp_path, RUNGS)
    content, rows = board(tmp_path), rows_by_label(tmp_path)
    rungs = content["networks"]["network"]["rungs"]
    assert [(rung["look"], rung["step"]) for rung in rungs] == [(1, 12), (5, 36)]
    kept = rungs[0]["kept"]
    assert "primary_only" in kept
    assert len(kept) in (1, 2)
    for label, row in rows.items():
        assert (row["steps"], row["complete"]) == ((36, True) if label in kept else (12, False))
        assert len(row["curve"]["score"]) == row["steps"] // 6
    winner = rows[content["final"]["winner"]]
    assert winner["label"] in kept
    trials = sum(row["steps"] for row in rows.values()) * 3
    assert content["networks"]["network"]["runs"] == trials / 36
    chosen = winner["best"]["step"] + (24 if winner["best"]["phase"] == "finetune" else 0)
    assert result.steps == trials + chosen
    # The scores of one look are kept for each candidate; those of all looks would need much memory.
    assert all(standing.outputs is not None for standing in seen[0].standings.values())
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sum("validation/loss" in line for line in lines) == 6
    assert any("loss/primary" in line for line in lines)


refit = Networks.refit


def test_trials_in_another_place_give_the_same_result(tmp_path: Path) -> None:
    """Trials are independent jobs: any order, any process, and a folder that is brought back."""
    train(tmp_path / "here", *TWO)

    def elsewhere(jobs: Any) -> Any:
        results = {}
        for one in reversed(jobs):
            away = tmp_path / "away" / one.folder.relative_to(tmp_path)
            if one.folder.exists():
                shutil.copytree(one.folder, away, dirs_exist_ok=True)
            trial._DATA.clear()
            results[one.folder] = trial.run_trial(replace(one, folder=away))
            shutil.copytree(away, one.folder, dirs_exist_ok=True)
            shutil.rmtree(away)
        return [results[one.folder] for one in jobs]

    train(tmp_path / "there", *TWO, execute=elsewhere)
    assert outcome(tmp_path / "here") == outcome(tmp_path / "there")


# -------------------------------------------------------------------------- stops and continuations


def train_until(stops: Callable[[trial.TrialJob], bool], folder: Path, *changes: str) -> None:
    """Interrupt a portfolio before a trial."""
    original = networks.run_trial

    def stopped(one: trial.TrialJob, *rest: Any) -> Any:
        if stops(one):
            raise KeyboardInterrupt
        return original(one, *rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(networks, "run_trial", stopped)
        with pytest.raises(KeyboardInterrupt):
            train(folder, *changes)


def continued(told: Told) -> list[str]:
    return [line for line in told.lines if line.startswith("continuing")]


def test_a_continued_run_trains_only_what_is_left_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [RUNGS, *TWO]
    train_until(
        lambda one: one.candidate.label == "multitask" and one.fold == 1, tmp_path, *changes
    )
    plan = Plan.read(tmp_path / "plan.json")
    assert plan is not None
    plan = replace(
        plan, costs=dict.fromkeys(plan.candidates, 100.0)
    )  # so that a full run takes 100 s
    plan.write(tmp_path / "plan.json")
    trained = list[trial.TrialJob]()
    original = networks.run_trial
    monkeypatch.setattr(
        networks, "run_trial", lambda one, *rest: (trained.append(one), original(one, *rest))[1]
    )
    told = Told()
    train(tmp_path, *changes, progress=told)
    pace = Pace(plan, job(*changes), 2, 1)
    pace.begin(0, ["primary_only", "multitask"])
    for label, fold in (("primary_only", 0), ("primary_only", 1), ("multitask", 0)):
        pace.skip(label, fold)
    (line,) = continued(told)
    assert "3 of 4" in line
    assert pace.words() in line
    assert [(one.candidate.label, one.fold) for one in trained if one.until == 12] == [
        ("multitask", 1)
    ]


# ----------------------------------------------------------------------------------- diverging ones


def test_diverging_candidates_are_dropped(tmp_path: Path) -> None:
    wild = "portfolio.candidates=[{name: multitask, auxiliary_weight: 1e10, head: own}, multitask]"
    plain_sgd = [
        "training.guided.optimizer=sgd",
        "training.guided.momentum=0",
        "training.guided.lr=30",
    ]
    train(
        tmp_path / "some",
        wild,
        *plain_sgd,
        "training.guided.clip=null",
        "training.finetune.lr=0.001",
    )
    rows = rows_by_label(tmp_path / "some")
    assert rows["multitask 1e+10, own head"]["diverged"]
    assert not rows["primary_only"]["diverged"]
    with pytest.raises(InputError, match="diverged"):
        train(tmp_path / "all", "training.guided.lr=1e30", "training.guided.clip=null")


@pytest.mark.parametrize("final", ["single"])
def test_a_candidate_that_diverges_on_all_labels_is_replaced_alone(
    final: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [
        f"portfolio.final={final}",
        "portfolio.members=refit",
        "portfolio.folds=2",
        "portfolio.rungs=[]",
    ]
    train(tmp_path / "usual", *changes)
    best, original, told = board(tmp_path / "usual")["final"]["winner"], trial._Trial.run, Told()

    def failing(self: Any) -> None:
        original(self)
        if self.job.fold is None and self.job.candidate.label in diverging:
            raise DivergedError("training diverged")

    monkeypatch.setattr(trial._Trial, "run", failing)
    diverging = [best]
    train(tmp_path / "other", *changes, progress=told)
    content, rows = board(tmp_path / "other"), rows_by_label(tmp_path / "other")
    assert content["final"]["winner"] != best
    assert best not in content["final"]["picks"]
    assert [label for label, row in rows.items() if row["diverged"]] == [best]
    kept = load_checkpoint(tmp_path / "other" / "out_of_fold.safetensors")
    assert best not in kept["candidates"]
    assert any(line.startswith(f"{best} is dropped") for line in told.lines)
    diverging = list(rows)
    with pytest.raises(InputError, match="diverged"):
        train(tmp_path / "none", *changes)


# ----------------------------------------------------------------------------------------- the rest


def test_no_two_candidates_share_a_folder(tmp_path: Path) -> None:
    some = Networks.__new__(Networks)
    some.setting = SimpleNamespace(folder=SimpleNamespace(trials_path=tmp_path))
    labels = ["primary_only", "multitask, only a + b", "multitask, only a-b", "multitask, only a b"]
    assert len({some.trial(label, 0) for label in labels}) == 4
    assert some.trial("primary_only", None) == tmp_path / "primary_only" / "all"
    assert len(some.trial("multitask, only " + "very long " * 100, 0).parent.name) < 100
