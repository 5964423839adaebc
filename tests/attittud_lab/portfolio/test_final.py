"""The final model: what is recorded about it is what the loaded model predicts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import attittud_lab
from attittud_lab.config.load import loads
from attittud_lab.config.schema import Config
from attittud_lab.portfolio import run as module
from attittud_lab.portfolio.run import run
from attittud_lab.runs.folder import load_checkpoint
from attittud_lab.training.evaluate import fitted_temperature
from tests.helpers.portfolios import board, job
from tests.helpers.simple_jobs import table_job, text_job

FINALS = {
    "networks of folds": ["portfolio.final=ensemble"],
    "simple models": ["portfolio.learners=[linear]", "portfolio.final=ensemble"],
    "both": ["portfolio.learners=[linear, network]", "portfolio.final=ensemble"],
}


def config_of(data: str, folder: Path, *changes: str) -> Config:
    if data == "images":
        return job("portfolio.features=[histogram]", f"output={folder}/runs", *changes)
    text = table_job(folder) if data == "tables" else text_job(folder)
    networks = (
        [] if any("learners" in change for change in changes) else ["portfolio.learners=[network]"]
    )
    return loads(text, [*networks, *changes])


def inputs_of_the_test_set(data: str, folder: Path, run_dir: Path) -> tuple[Any, list[str]]:
    """The test examples as a user would have them, and their labels."""
    rows = json.loads((run_dir / "data.json").read_text())["primary"]["test"]["rows"]
    if data == "images":
        bunch = load_digits()
        images = np.round(bunch.images * (255 / 16)).astype(np.uint8)
        return images[rows], [str(bunch.target[row]) for row in rows]
    if data == "tables":
        table = pq.read_table(folder / "own.parquet").to_pylist()
        return [{"v": table[row]["v"]} for row in rows], [table[row]["label"] for row in rows]
    texts = [json.loads(line) for line in (folder / "own.jsonl").read_text().splitlines()]
    return [texts[row]["text"] for row in rows], [texts[row]["label"] for row in rows]


def one_of_each(likely: dict[str, Any], _held_out: Any, best: str, _picks: int) -> dict[str, int]:
    """Picks of an ensemble: the best candidate, and up to three others of both kinds."""
    networks = [
        label for label in likely if label == "primary_only" or label.startswith("multitask")
    ]
    others = [label for label in likely if label not in networks]
    return dict.fromkeys([*networks[:1], *others[-2:]], 1) | {best: 3}


@pytest.mark.parametrize(
    ("data", "kind"),
    [("images", "networks of folds"), ("tables", "both"), ("texts", "simple models")],
)
def test_the_loaded_model_predicts_what_was_recorded(data, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "greedy", one_of_each)
    folder = tmp_path / "run"
    result = run(config_of(data, tmp_path, *FINALS[kind]), folder)
    content, about = board(folder), json.loads((folder / "model.json").read_text())
    picks, members = content["final"]["picks"], about["members"]
    if kind == "both":
        assert {member["kind"] for member in members} == {"simple", "network"}
    assert len(members) > 1
    # Each pick has its part of the model; that of a network is divided among those of the folds.
    simple = sum(member["kind"] == "simple" for member in members)
    folds = (len(members) - simple) / max(1, len(picks) - simple)
    of_simple = [row["label"] for row in content["candidates"] if row["kind"] == "simple"]
    expected = {
        count / sum(picks.values()) / (1 if label in of_simple else folds)
        for label, count in picks.items()
    }
    assert {round(member["share"], 9) for member in members} == {round(x, 9) for x in expected}
    assert sum(member["share"] for member in members) == pytest.approx(1)
    model = attittud_lab.load(folder)
    inputs, labels = inputs_of_the_test_set(data, tmp_path, folder)
    right = np.array(model.predict(inputs)) == np.array(labels)
    assert result.test["accuracy"] == pytest.approx(right.mean())
    names = [f"input {number}" for number in range(len(labels))]
    targets = torch.tensor([model.classes.index(label) for label in labels])
    scores = model.scores(model.batch(model._raws(inputs), names))
    assert result.test["loss"] == pytest.approx(float(F.cross_entropy(scores, targets)), rel=1e-4)
    # One example at a time gives the same probabilities.
    likely = model.predict_proba(inputs)
    alone = np.concatenate(
        [model.predict_proba(inputs[number : number + 1]) for number in range(4)]
    )
    np.testing.assert_allclose(alone, likely[:4], atol=1e-5)
    kept = load_checkpoint(folder / "out_of_fold.safetensors")
    assert about["temperature"] == pytest.approx(fitted_temperature(kept["model"], kept["targets"]))
    assert about["calibrated_on"] == len(kept["targets"]) == content["validated"]
    assert about["bytes"] == content["model"]["bytes"] > 0
    assert about["seconds"] > 0
    accuracy = float((kept["model"].argmax(1) == kept["targets"]).float().mean())
    assert result.validation["accuracy"] == pytest.approx(accuracy)
    assert not (folder / "trials").exists()
