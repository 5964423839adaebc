"""Whole portfolios: stops at any moment, rare classes, texts, groups, and workers."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import attittud_lab
from attittud_lab.config.load import load, loads
from attittud_lab.errors import InputError
from attittud_lab.files import write_atomically
from attittud_lab.portfolio import trial
from attittud_lab.portfolio.intervals import Intervals
from attittud_lab.portfolio.run import run
from attittud_lab.report import write_report
from attittud_lab.runs.folder import load_checkpoint
from attittud_lab.training.train import load_data
from tests.helpers.portfolios import SIMPLE, Told, board, job, of_patients, outcome, train
from tests.helpers.simple_jobs import table_job, text_job
from tests.helpers.text_jobs import write_job
from tests.helpers.texts import tiny_encoder

NETWORKS = ["portfolio.candidates=[multitask]", "portfolio.folds=2"]
BOTH = [
    *NETWORKS,
    "portfolio.learners=[linear, network]",
    "portfolio.features=[histogram]",
    "portfolio.final=ensemble",
]
KINDS = {"one network": NETWORKS, "both": BOTH}


def test_out_of_fold_predictions_are_recorded(tmp_path):
    train(tmp_path, *BOTH)
    kept, content = load_checkpoint(tmp_path / "out_of_fold.safetensors"), board(tmp_path)
    assert sorted(kept["rows"].tolist()) == list(range(60))
    assert set(kept["folds"].tolist()) == {0, 1}
    accuracies = {}
    for row in content["candidates"]:
        outputs = kept["candidates"][row["label"]]
        accuracies[row["label"]] = float((outputs.argmax(1) == kept["targets"]).float().mean())
        assert row["score"] == pytest.approx(accuracies[row["label"]])
        assert row["low"] <= row["score"] <= row["high"]
    worth = content["worth"]
    difference = accuracies[worth["best"]] - accuracies[worth["reference"]]
    assert worth["difference"] == pytest.approx(difference, abs=1e-6)
    kinds = {row["kind"] for row in content["candidates"]}
    assert kinds == {"simple", "network"}
    assert [row["alone"] for row in content["candidates"] if row["without_us"]] == [True]


def killed_after_each_write(folder: Path, train_it: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Start a run again and again, each time killed later. Return the number of tries."""
    count, kill_at, tries = 0, 0, 0

    def killed(path: Path, content: bytes, *rest: str) -> None:
        nonlocal count
        count += 1
        write_atomically(path, content, *rest)
        if count > kill_at:
            raise KeyboardInterrupt

    for name in ("files", "runs.folder", "models.weights", "portfolio.final", "portfolio.simple"):
        monkeypatch.setattr(f"attittud_lab.{name}.write_atomically", killed)
    while not (folder / "result.json").exists():
        count, kill_at, tries = 0, 1 + tries // 2, tries + 1
        try:
            train_it()
        except KeyboardInterrupt:
            assert tries < 200
    return tries


@pytest.mark.parametrize("kind", ["one network", pytest.param("both", marks=pytest.mark.nightly)])
def test_a_portfolio_killed_anywhere_ends_with_the_same_result(kind, tmp_path, monkeypatch):
    changes = [*KINDS[kind], f"output={tmp_path}/output"]
    monkeypatch.setattr(trial, "SAVED_EVERY", 0.0)
    train(tmp_path / "whole", *changes)
    tries = killed_after_each_write(
        tmp_path / "killed", lambda: train(tmp_path / "killed", *changes), monkeypatch
    )
    assert tries > 5
    assert run(job(*changes), tmp_path / "killed").skipped
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "killed")


@pytest.mark.parametrize(("budget", "tried"), [("100000d", 4), ("0.001s", 1)])
def test_a_table_killed_anywhere_ends_with_the_same_result(budget, tried, tmp_path, monkeypatch):
    """With a budget that only the first candidate may exceed, too; then neither other candidates
    nor networks are tried, and a line names them.
    """
    changes = [f"portfolio.budget={budget}", "portfolio.final=ensemble"]
    if tried == 1:
        changes.append("portfolio.learners=[linear, network]")
    config = loads(table_job(tmp_path), changes)
    told = Told()
    run(config, tmp_path / "whole", progress=told)
    content = board(tmp_path / "whole")
    assert len(content["candidates"]) == tried
    skipped = [line for line in told.lines if "portfolio.budget" in line]
    if tried == 1:
        assert content["candidates"][0]["label"] == "columns, linear, alone"
        assert "columns, linear, stacked more + other" in skipped[0]
        assert skipped[1].startswith("network: skipped")
        assert set(skipped) <= set(content["simple"]["lines"])
    else:
        assert skipped == []
    tries = killed_after_each_write(
        tmp_path / "killed", lambda: run(config, tmp_path / "killed"), monkeypatch
    )
    assert tries > 5
    assert run(config, tmp_path / "killed").skipped
    assert outcome(tmp_path / "whole") == outcome(tmp_path / "killed")


@pytest.mark.parametrize(
    "refused", ["portfolio.learners=[linear, finetuned]", "portfolio.features=[hf:absent]"]
)
def test_a_refused_job_does_not_block_the_corrected_one(refused, tmp_path):
    """A mistake in the settings that only the data show leaves nothing to start over from."""
    with pytest.raises(InputError, match=r"finetuned|absent"):
        train(tmp_path / "run", *SIMPLE, refused)
    train(tmp_path / "run", *SIMPLE)
    assert board(tmp_path / "run")["candidates"]


def test_a_simple_learner_is_tried_for_comparison_whatever_the_job_names(tmp_path, monkeypatch):
    """On cheap features if those of the job would take too long."""
    tiny_encoder(tmp_path / "encoder")
    changes = ["portfolio.learners=[network]", f'portfolio.features=["hf:{tmp_path}/encoder"]']
    config = loads(text_job(tmp_path), [*changes, "portfolio.budget=1h"])
    monkeypatch.setattr("attittud_lab.portfolio.simple.seconds_for", lambda *_: 1e6)
    run(config, tmp_path / "run")
    content = board(tmp_path / "run")
    (row,) = [row for row in content["candidates"] if row["without_us"]]
    assert (row["label"], row["for_comparison"], row["picks"]) == ("tfidf, linear, alone", True, 0)
    assert row["label"] in content["without_us"]
    assert "portfolio.learners" in content["without_us"]
    assert content["without_us"] in write_report(tmp_path / "run").read_text()


def test_networks_that_cannot_win_are_not_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(Intervals, "is_perfect", lambda *_: True)
    told = Told()
    train(tmp_path, *BOTH, progress=told)
    assert {row["kind"] for row in board(tmp_path)["candidates"]} == {"simple"}
    (line,) = [line for line in told.lines if line.startswith("network: skipped")]
    assert "standard error" in line


def test_rare_classes_train_and_are_named(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for split, counts in {"train": [12, 12, 2], "test": [4, 4, 4]}.items():
        labels = np.repeat([0, 1, 2], counts)
        values = np.random.default_rng(len(split)).normal(labels[:, None], 1, (len(labels), 4))
        table = pa.table({"v": values.tolist(), "label": [f"c{label}" for label in labels]})
        pq.write_table(table, folder / f"{split}.parquet")
    text = f"""
data: {{kind: table, primary: {{path: {folder}, validation: 0}}}}
model: {{name: table-mlp, width: 8}}
training: {{guided: {{steps: 8, primary_batch: 32}}, finetune: {{steps: 4}}}}
strategy: portfolio
portfolio: {{learners: [linear]}}
"""
    told = Told()
    run(loads(text), tmp_path / "run", progress=told)
    content = board(tmp_path / "run")
    assert content["not_validated"] == ["c2"]
    assert (content["labels"], content["validated"]) == (26, 24)
    assert any("c2" in line for line in told.lines)
    assert [row["alone"] for row in content["candidates"]] == [True]
    assert content["worth"] is None
    assert attittud_lab.load(tmp_path / "run").predict([{"v": [0.0] * 4}])[0] in ("c0", "c1", "c2")


def test_several_labels_groups_and_sources(tmp_path):
    """Groups stay whole in the folds."""
    text = of_patients(tmp_path)
    run(loads(text), tmp_path / "run")
    content = board(tmp_path / "run")
    assert content["metric"] == "auc"
    assert all(0 <= row["score"] <= 1 for row in content["candidates"])
    kept = load_checkpoint(tmp_path / "run" / "out_of_fold.safetensors")
    groups = load_data(loads(text), pooled=True).groups
    homes: dict[str, set[int]] = {}
    for row, fold in zip(kept["rows"].tolist(), kept["folds"].tolist(), strict=True):
        homes.setdefault(groups[row], set()).add(fold)
    assert all(len(folds) == 1 for folds in homes.values())
    assert len(homes) > 10
    predicted = attittud_lab.load(tmp_path / "run").predict_proba([{"v": [0.1, 0.2, 0.3, 0.4]}])
    assert predicted.shape == (1, 3)
    # Each label of a source is a question of its own.
    lists = content["suspicious"]
    assert [source["source"] for source in lists] == ["s0", "s1", "s2", "s3"]
    assert [source["examined"] for source in lists] == [60 * 2, *[60 * 3] * 3]
    with (tmp_path / "run" / "suspicious.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(source["listed"] for source in lists)
    assert all(row["label"].endswith((": no", ": yes")) for row in rows)
    write_report(tmp_path / "run")


def test_held_out_texts_are_never_used_as_masked_texts(tmp_path):
    path = write_job(tmp_path)
    own = [
        json.loads(line)["text"] for line in (tmp_path / "labelled.jsonl").read_text().splitlines()
    ]
    with (tmp_path / "plain.jsonl").open("a") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in own)
    data = load_data(load(path, ["strategy=portfolio"]), pooled=True)
    assert data.record["auxiliary"]["lm"]["left_out_as_primary"] == len(own)
