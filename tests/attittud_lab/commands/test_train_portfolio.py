"""`attittud train` with a portfolio, as a person types it."""

import json
import shlex
from pathlib import Path

import pytest

from attittud_lab.config.load import load
from tests.helpers.commands import FEW_RUNS, call
from tests.helpers.portfolios import board
from tests.helpers.predictions import of_digits

SIMPLE = ["strategy=portfolio", "portfolio.features=[histogram]", "portfolio.learners=[linear]"]
ALONE = [*SIMPLE, "portfolio.uses=[alone]"]
NETWORKS = ["strategy=portfolio", "portfolio.looks=4", "portfolio.learners=[network]"]
NETWORKS += ["portfolio.candidates=[multitask]", "training.guided.steps=8"]
BOTH = [*SIMPLE[:2], *NETWORKS, "portfolio.learners=[linear, network]", "portfolio.final=ensemble"]


def test_a_budget_that_is_refused_leaves_no_folder(capsys):
    """Else the corrected command would find a run with another configuration there."""
    assert call("train", "job.yaml", *SIMPLE, "portfolio.budget=0 runs") == 2
    assert "portfolio.budget" in capsys.readouterr().err
    assert not Path("runs/job/portfolio").exists()


def test_train_predict_and_report(capsys):
    assert call("train", "job.yaml", *BOTH) == 0
    out, err = capsys.readouterr()
    folder = Path("runs/job/portfolio/seed-0")
    content = board(folder)
    # The last line is the folder; what was decided and what a user would have had without us are
    # told once.
    assert Path(out.splitlines()[-1]) == folder
    for text in (content["decision"], content["without_us"]):
        assert text
        assert out.count(text) == 1
    assert f"attittud predict {folder} INPUTS" in out
    # Each candidate's score is told when it is known.
    for row in content["candidates"]:
        if row["kind"] == "simple":
            assert f"{row['label']}: out-of-fold accuracy {row['score']:.4f}" in err
    assert content["without_us"] in (folder / "report.html").read_text()
    assert call("train", "job.yaml", *BOTH, "--quiet") == 0
    out, err = capsys.readouterr()
    assert "finished earlier" in out
    assert err == ""
    images, labels = of_digits(folder, Path())
    assert call("predict", str(folder), str(images), "--output", "out.jsonl") == 0
    predicted = [json.loads(line)["label"] for line in Path("out.jsonl").read_text().splitlines()]
    accuracy = json.loads((folder / "result.json").read_text())["test"]["accuracy"]
    found = sum(a == b for a, b in zip(predicted, labels, strict=True)) / len(labels)
    assert found == pytest.approx(accuracy)
    (folder / "report.html").unlink()
    assert call("report", str(folder)) == 0
    assert (folder / "report.html").exists()


def test_labels_that_look_wrong_lead_to_their_translation(capsys, monkeypatch):
    found = {"source": "more", "examined": 300, "labels": 300, "listed": 7, "top": []}
    found |= {"same_classes": True, "rate": 0.1, "judge": "linear"}
    with monkeypatch.context() as patch:
        patch.setattr("attittud_lab.portfolio.run.suspicious", lambda *_: [found])
        assert call("train", "job.yaml", *SIMPLE, "output=mine", "--quiet") == 0
    advice = [line for line in capsys.readouterr().out.splitlines() if "translated" in line]
    (proposed,) = [line.split("`")[1] for line in advice if line.startswith("next: ")]
    words = shlex.split(proposed)[1:]
    assert [word for word in words if word.startswith("output=")] == ["output=mine/more-uses"]
    assert load("job.yaml", words[2:]).cache == Path("mine"), "features are computed once"
    assert call(*words, "--quiet") == 0
    out, _ = capsys.readouterr()
    content = board(Path(out.splitlines()[-1]))
    assert any("translated" in row["label"] for row in content["candidates"])
    assert "attittud train" not in out, "it was tried"


def test_a_model_that_guesses_names_what_would_be_tried(capsys, monkeypatch):
    """It named a model, which a portfolio of simple learners does not train."""
    monkeypatch.setattr("attittud_lab.portfolio.words.guess", lambda *said: said[-1])
    assert call("train", "job.yaml", *ALONE, "--quiet") == 0
    out, _ = capsys.readouterr()
    assert "portfolio.features=[efficientnet]" in out
    assert " model=" not in out


def test_a_portfolio_trains_without_a_test_set(capsys):
    assert call("train", "job.yaml", *ALONE, "data.primary.test=0", "--quiet") == 0
    out, _ = capsys.readouterr()
    assert "\ntest " not in out
    assert "attittud compare" not in out  # it measures by a test set
    assert call("report", "runs/job/portfolio/seed-0") == 0
    for command in ("compare", "train"):
        capsys.readouterr()
        assert call(command, "job.yaml", "data.primary.test=0") == 2
        assert "data.primary.test" in capsys.readouterr().err


def test_compare_refuses_the_portfolio_or_leaves_it_out(capsys):
    assert call("compare", "job.yaml", "compare.strategies=[portfolio]") == 2
    assert "compare.strategies" in capsys.readouterr().err
    assert call("compare", "job.yaml", "strategy=portfolio", *FEW_RUNS) == 0
    out, err = capsys.readouterr()
    assert "portfolio" in err
    assert "| multitask" in out
    assert "| portfolio" not in out
