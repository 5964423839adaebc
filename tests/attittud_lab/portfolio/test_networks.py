"""The networks of a portfolio: rungs, trials elsewhere, stops and continuations, and candidates
that diverge.
"""

from pathlib import Path
from typing import Any

import pytest

from attittud_lab.placing.processes import in_processes
from attittud_lab.portfolio.networks import Networks
from tests.helpers.portfolios import board, outcome, train

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


def test_trials_in_two_processes_give_the_same_result(tmp_path: Path) -> None:
    train(tmp_path / "here", *TWO, "portfolio.final=ensemble")
    with in_processes(2) as place:
        train(tmp_path / "there", *TWO, "portfolio.final=ensemble", place=place)
    assert outcome(tmp_path / "here") == outcome(tmp_path / "there")
