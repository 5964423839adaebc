"""Simple candidates in a portfolio against an independent computation with scikit-learn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_union
from torch.nn.functional import cross_entropy

from attittud_lab.config.load import loads
from attittud_lab.learners.linear import PENALTIES
from attittud_lab.portfolio.run import run
from attittud_lab.predict.restore import load
from attittud_lab.runs.folder import load_checkpoint
from attittud_lab.training.train import load_data
from attittud_lab.uses.pooled import WEIGHTS
from tests.helpers.portfolios import board
from tests.helpers.simple_jobs import table_job, text_job

Numbers = np.ndarray


def trained(text: str, folder: Path, *changes: str) -> dict[str, Any]:
    """Train a portfolio, and return its out-of-fold predictions."""
    run(loads(text, changes), folder)
    return load_checkpoint(folder / "out_of_fold.safetensors")


def sklearn_scores(
    features: Numbers, labels: Numbers, weights: Numbers, new: Numbers, penalty: float
) -> Numbers:
    """Log-probabilities of new rows by scikit-learn, on centred rows of mean length 1."""
    mean = features.mean(0)
    scale = np.sqrt(np.square(features - mean).sum(1).mean())
    model = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=5000)
    model.fit((features - mean) / scale, labels, sample_weight=weights)
    return model.predict_log_proba((new - mean) / scale)


def recomputed(
    kept: dict[str, Any], features: Numbers, more: Numbers | None, more_labels: Numbers | None
) -> Numbers:
    """Out-of-fold log-probabilities of `alone`, or of `pooled`, in recorded order."""
    labels, folds = kept["targets"].numpy(), kept["folds"].numpy()
    settings = [(penalty, 0.0) for penalty in PENALTIES]
    if more is not None:
        settings = [(penalty, weight) for penalty in PENALTIES for weight in WEIGHTS]
    best, lowest = None, np.inf
    for penalty, weight in settings:
        scores = np.empty((len(labels), labels.max() + 1))
        for fold in np.unique(folds):
            train = folds != fold
            x, y, weights = features[train], labels[train], np.ones(train.sum())
            if more is not None:
                x, y = np.concatenate([x, more]), np.concatenate([y, more_labels])
                weights = np.concatenate([weights, np.full(len(more), weight)])
            scores[~train] = sklearn_scores(x, y, weights, features[~train], penalty)
        loss = -scores[np.arange(len(labels)), labels].mean()
        if loss < lowest:
            best, lowest = scores, loss

    def cooled_loss(log_temperature: float) -> float:
        cooled = log_softmax(best / np.exp(log_temperature), axis=1)
        return -cooled[np.arange(len(labels)), labels].mean()

    temperature = np.exp(
        minimize_scalar(cooled_loss, bounds=(np.log(0.2), np.log(5)), method="bounded").x
    )
    return log_softmax(best / temperature, axis=1)


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_same(outputs: Any, expected: Numbers) -> None:
    np.testing.assert_allclose(np.exp(outputs.numpy()), np.exp(expected), atol=0.01)


def test_out_of_fold_scores_of_a_table_are_those_of_scikit_learn(tmp_path):
    text = table_job(tmp_path)
    kept = trained(text, tmp_path / "run", "portfolio.uses=[pooled, stacked]")
    data = load_data(loads(text), pooled=True)
    features = data.primary.examples.inputs.numpy()[kept["rows"].numpy()]
    assert_same(
        kept["candidates"]["columns, linear, alone"], recomputed(kept, features, None, None)
    )
    more = data.auxiliary["more"]
    assert more.classes == data.primary.classes
    expected = recomputed(
        kept, features, more.examples.inputs.numpy(), more.examples.targets.numpy()
    )
    assert_same(kept["candidates"]["columns, linear, pooled more"], expected)
    labels = {row["label"] for row in board(tmp_path / "run")["candidates"]}
    assert "columns, linear, pooled other" not in labels
    skipped = [
        line for line in board(tmp_path / "run")["simple"]["lines"] if "pooled: skipped" in line
    ]
    assert len(skipped) == 1 and "other" in skipped[0]
    assert "columns, linear, stacked more + other" in labels


def test_out_of_fold_scores_of_texts_are_those_of_scikit_learn(tmp_path):
    text = text_job(tmp_path)
    kept = trained(text, tmp_path / "run", "portfolio.uses=[pooled]")
    own, more = (read_lines(tmp_path / name) for name in ("own.jsonl", "more.jsonl"))
    names = [int(name.rpartition(" ")[2]) - 1 for name in kept["names"]]  # "own.jsonl, line 3"
    used = json.loads((tmp_path / "run" / "data.json").read_text())["primary"]["train"]["rows"]
    assert sorted(names) == sorted(used)
    words = TfidfVectorizer(
        sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", min_df=2
    )
    letters = TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(2, 5), min_df=2)
    both = make_union(words, letters)
    # no text of the test set
    both.fit([own[row]["text"] for row in used] + [row["text"] for row in more])
    features = both.transform([own[row]["text"] for row in names]).toarray()
    assert_same(kept["candidates"]["tfidf, linear, alone"], recomputed(kept, features, None, None))
    expected = recomputed(
        kept,
        features,
        both.transform([row["text"] for row in more]).toarray(),
        np.array([int(row["label"] == "good") for row in more]),
    )
    assert_same(kept["candidates"]["tfidf, linear, pooled more"], expected)


def test_pictures_are_read_alike_in_training_and_prediction(tmp_path):
    numbers = np.random.default_rng(0)
    for source, count in [("own/train", 8), ("own/test", 4), ("more", 8)]:
        for label in ("a", "b"):
            (tmp_path / source / label).mkdir(parents=True)
            for number in range(count):
                pixels = numbers.integers(0, 256, (24, 24), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / source / label / f"{number}.png")
    config = loads(f"""
data:
  primary: {{path: {tmp_path}/own, validation: 0, test: null}}
  auxiliary: {{more: {{path: {tmp_path}/more}}}}
  image_size: 16
model: {{name: small-cnn, width: 4}}
strategy: portfolio
output: {tmp_path}/runs
portfolio: {{features: [histogram], learners: [linear], uses: [stacked]}}
""")
    tested = run(config, tmp_path / "run").test
    files = sorted((tmp_path / "own" / "test").glob("*/*.png"))
    model = load(tmp_path / "run")
    scores = model.scores(model.batch(files, [file.name for file in files]))
    labels = torch.tensor([int(file.parent.name == "b") for file in files])
    assert tested["loss"] == pytest.approx(float(cross_entropy(scores, labels)), rel=1e-4)


def test_a_source_may_be_called_test(tmp_path):
    results = []
    for source in ("more", "test"):
        text = table_job(tmp_path / source).replace("    more: {", f"    {source}: {{")
        results.append(run(loads(text), tmp_path / f"run-{source}"))
    assert results[0].test == results[1].test
    assert results[0].validation == results[1].validation
