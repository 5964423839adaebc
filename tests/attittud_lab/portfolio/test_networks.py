"""The networks of a portfolio: their trials, here and in other processes."""

from attittud_lab.placing.processes import in_processes
from tests.helpers.portfolios import board, outcome, train

TWO = ["portfolio.candidates=[multitask]", "portfolio.folds=2"]


def test_every_candidate_is_trained_on_every_fold_and_the_best_on_all_labels(tmp_path):
    result = train(tmp_path)
    content = board(tmp_path)
    rows = {row["label"]: row for row in content["candidates"]}
    for_comparison = rows.pop("histogram, linear, alone")
    assert for_comparison["without_us"] and for_comparison["for_comparison"]
    assert for_comparison["picks"] == 0
    assert for_comparison["label"] in content["without_us"]
    assert content["worth"]["reference"] in rows
    assert len(rows) == 4
    for row in rows.values():
        assert row["steps"] == 36
        assert len(row["curve"]["score"]) == 6
    winner = rows[content["final"]["winner"]]
    chosen = winner["best"]["step"] + (24 if winner["best"]["phase"] == "finetune" else 0)
    assert result.steps == 4 * 36 * 3 + chosen
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sum("validation/loss" in line for line in lines) == 6
    assert any("loss/primary" in line for line in lines)


def test_trials_in_two_processes_give_the_same_result(tmp_path):
    train(tmp_path / "here", *TWO, "portfolio.final=ensemble")
    with in_processes(2) as place:
        train(tmp_path / "there", *TWO, "portfolio.final=ensemble", place=place)
    assert outcome(tmp_path / "here") == outcome(tmp_path / "there")
