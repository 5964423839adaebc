"""The final model: what is recorded about it is what the loaded model predicts."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import attittud_lab
from attittud_lab.config.schema import CandidateConfig
from attittud_lab.portfolio.candidates import named
from attittud_lab.portfolio.choose import Curve
from attittud_lab.portfolio.final import where, write_metrics
from attittud_lab.portfolio.leaderboard import Standing
from attittud_lab.portfolio.run import run
from attittud_lab.runs.folder import load_checkpoint
from attittud_lab.training.evaluate import fitted_temperature
from tests.helpers.portfolios import job, train

FINALS = {
    "single": ["portfolio.final=single"],
    "folds": ["portfolio.final=ensemble"],
    "refit": ["portfolio.final=ensemble", "portfolio.members=refit"],
}


def images_of_the_test_set(folder: Path) -> tuple[np.ndarray, torch.Tensor]:
    """The images and classes of the test set."""
    bunch, record = load_digits(), json.loads((folder / "data.json").read_text())
    rows = record["primary"]["test"]["rows"]
    return np.round(bunch.images * (255 / 16)).astype(np.uint8)[rows], torch.from_numpy(bunch.target[rows])


@pytest.mark.parametrize("kind", FINALS)
def test_the_loaded_model_predicts_what_was_recorded(kind: str, tmp_path: Path) -> None:
    result = train(tmp_path, *FINALS[kind])
    model = attittud_lab.load(tmp_path)
    images, targets = images_of_the_test_set(tmp_path)
    board, about = (json.loads((tmp_path / name).read_text()) for name in ("leaderboard.json", "model.json"))
    right = np.array(model.predict(images)) == targets.numpy().astype(str)
    assert result.test["accuracy"] == pytest.approx(right.mean())
    names = [f"input {i}" for i in range(len(images))]
    loss = F.cross_entropy(model.scores(model.examples(list(images[:, None]), names)), targets)
    assert result.test["loss"] == pytest.approx(float(loss), rel=1e-5)
    picks, members = board["final"]["picks"], about["members"]
    assert len(members) == {"single": 1, "folds": 3 * len(picks), "refit": len(picks)}[kind]
    assert sum(member["share"] for member in members) == pytest.approx(1)
    assert board["final"]["kind"] == ("single" if kind == "single" else "ensemble")
    kept = load_checkpoint(tmp_path / "out_of_fold.safetensors")
    assert about["temperature"] == pytest.approx(fitted_temperature(kept["model"], kept["targets"]))
    assert about["calibrated_on"] == len(kept["targets"]) == board["validated"]
    assert about["bytes"] == board["model"]["bytes"] > 0 and about["seconds"] > 0
    assert all(row["bytes"] * len(members) == about["bytes"] for row in board["candidates"])
    assert result.validation["accuracy"] == pytest.approx(
        float((kept["model"].argmax(1) == kept["targets"]).float().mean())
    )
    assert not (tmp_path / "trials").exists() and board["peak_disk"] > 0
    assert 20e6 < board["peak_memory"] < 100e9


def test_without_a_test_set_the_figures_that_chose_are_shown(tmp_path: Path) -> None:
    result = train(tmp_path, "data.primary.test=0", "data.primary.validation=0")
    assert result.test == {} and result.validation["accuracy"] > 0 and result.examples["test"] == 0
    board = json.loads((tmp_path / "leaderboard.json").read_text())
    assert board["tested"] is False and board["labels"] == 40
    assert run(job("data.primary.test=0", "data.primary.validation=0"), tmp_path).skipped
    assert attittud_lab.load(tmp_path).predict(np.zeros((2, 8, 8), dtype=np.uint8))


def test_an_evaluation_knows_its_phase_and_step() -> None:
    config = job()
    assert [where(config, look)["step"] for look in range(6)] == [6, 12, 18, 24, 6, 12]
    assert [where(config, look)["phase"] for look in (3, 4)] == ["guided", "finetune"]
    assert where(job("training.mode=joint"), 5) == {"phase": "guided", "step": 24}


def test_evaluations_have_the_seconds_of_their_own_phase(tmp_path: Path) -> None:
    lines = [{"phase": "guided", "step": step, "seconds": step / 10} for step in (4, 8, 12, 16, 20, 24)]
    lines += [{"phase": "finetune", "step": step, "seconds": step / 1000} for step in (4, 8, 12)]
    candidate = named(CandidateConfig(name="multitask"), job())
    write_metrics(tmp_path, job(), lines, Standing(candidate, curve=Curve([0.5] * 6, [1.0] * 6)), "accuracy")
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    looks = [line["seconds"] for line in found if "validation/loss" in line]
    assert looks == [0.4, 1.2, 1.6, 2.4, 0.004, 0.012]
