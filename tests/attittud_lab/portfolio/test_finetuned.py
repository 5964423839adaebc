"""The learner `finetuned`, with tiny networks: from the command to the export, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attittud_lab
from attittud_lab.config.load import load
from attittud_lab.config.schema import CandidateConfig
from attittud_lab.errors import InputError
from attittud_lab.portfolio import budget, candidates, finetuned, networks, trial
from attittud_lab.portfolio.budget import plan
from attittud_lab.portfolio.intervals import Intervals
from attittud_lab.portfolio.run import run
from attittud_lab.training.train import load_data
from tests.helpers.commands import call
from tests.helpers.portfolios import Told, board, outcome
from tests.helpers.predictions import of_digits
from tests.helpers.simple_jobs import table_job
from tests.helpers.texts import tiny_encoder, tiny_images, write_reviews

SMALL = "finetuned: {steps: 8, image_size: 16}, looks: 2, folds: 2"
IMAGES = f"""
data:
  primary: {{path: digits, train: 40, validation: 20, test: 50}}
  auxiliary: {{more: {{path: digits, examples: 80}}}}
strategy: portfolio
portfolio: {{{SMALL}, learners: [finetuned], features: ["hf:encoder"], candidates: [multitask]}}
"""
TEXTS = f"""
data:
  primary: {{path: labelled.jsonl, train: 40, validation: 20, test: 30}}
  auxiliary: {{more: {{path: more.jsonl}}}}
  max_length: 24
model: {{name: text-cnn, width: 8}}
training: {{mode: joint, guided: {{steps: 6, primary_batch: 16, batch_size: 16}}}}
strategy: portfolio
portfolio: {{{SMALL}, learners: [finetuned], features: ["hf:encoder"], candidates: [multitask]}}
"""
ALL = 'portfolio.features=[tfidf, "hf:encoder"]', "portfolio.learners=[linear,network,finetuned]"
"""On texts the two networks have two tokenizers."""


def write_images() -> None:
    tiny_images(Path("encoder"))
    Path("job.yaml").write_text(IMAGES)


def write_texts() -> None:
    tiny_encoder(Path("encoder"))
    write_reviews(Path("labelled.jsonl"), 90, 0)
    write_reviews(Path("more.jsonl"), 80, 1)
    Path("job.yaml").write_text(TEXTS)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)


@pytest.mark.parametrize("strategy", ["primary_only", "multitask", "pretrain"])
def test_outputs_of_a_fold_do_not_depend_on_its_labels(strategy, monkeypatch):
    write_images()
    config = load(Path("job.yaml"))
    data = load_data(config, pooled=True)
    folds = trial.make_folds(data, config.portfolio, seed=0)
    monkeypatch.setattr(trial, "make_folds", lambda *_: folds)
    (model,) = finetuned.pretrained_networks(config, data).values()
    job = finetuned.job_for(config, data, model)
    phases = {
        name: replace(getattr(job.training, name), primary_batch=16)
        for name in ("guided", "finetune")
    }
    job = replace(job, training=replace(job.training, **phases))
    candidate = candidates.named(CandidateConfig(name=strategy), job)

    def trained(held_out: int, by: int) -> list[torch.Tensor]:
        """The outputs for fold 0 where the labels of a fold are moved by some classes."""
        examples = data.primary.examples
        targets = examples.targets.clone()
        chosen = torch.from_numpy(folds.fold_of == held_out)
        targets[chosen] = (targets[chosen] + by) % len(data.primary.classes)
        primary = replace(data.primary, examples=replace(examples, targets=targets))
        folder = Path(f"trial-{held_out}-{by}")
        work = trial.TrialJob(job, candidate, 0, 8, folder)
        return trial.run_trial(work, replace(data, primary=primary)).outputs

    truth = trained(0, 0)
    for first, second in zip(truth, trained(0, 1), strict=True):
        assert torch.equal(first, second)
    others = trained(1, 1)
    assert not all(torch.equal(first, second) for first, second in zip(truth, others, strict=True))


def test_images_from_train_to_export():
    write_images()
    assert call("train", "job.yaml", "--quiet") == 0
    folder = Path("runs/job/portfolio/seed-0")
    content = board(folder)
    labels = {row["label"] for row in content["candidates"]}
    networks = {"hf:encoder, finetuned, primary_only", "hf:encoder, finetuned, multitask"}
    assert labels == {"hf:encoder, linear, alone", *networks}
    assert "hf:encoder, linear, alone" not in content["final"]["picks"]
    assert [*content["networks"]] == ["hf:encoder, finetuned"]
    expected = {"guided": 8, "finetune": 2}
    assert content["networks"]["hf:encoder, finetuned"]["plan"]["steps"] == expected
    assert "hf:encoder" in (folder / "report.html").read_text()
    images, right = of_digits(folder, Path())
    assert call("predict", str(folder), str(images), "--output", "out.jsonl") == 0
    predicted = [json.loads(line)["label"] for line in Path("out.jsonl").read_text().splitlines()]
    accuracy = json.loads((folder / "result.json").read_text())["test"]["accuracy"]
    same = [a == b for a, b in zip(predicted, right, strict=True)]
    assert np.mean(same) == pytest.approx(accuracy)
    # The encoder's folder is not needed any more: its description lies in the run folder.
    Path("encoder").rename("elsewhere")
    model = attittud_lab.load(folder)
    pixels = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    model.export(Path("model.pt2"))
    program = torch.export.load("model.pt2").module()
    torch.testing.assert_close(program(pixels), model.module(pixels), rtol=1e-4, atol=1e-5)
    assert call("report", str(folder)) == 0


def test_texts_with_two_tokenizers_are_predicted_as_tested(monkeypatch):
    """An ensemble of all learners: TF-IDF, hashed words of text-cnn, and the encoder's tokens."""
    write_texts()
    monkeypatch.setattr(
        "attittud_lab.portfolio.run.greedy", lambda likely, *_: dict.fromkeys(likely, 1)
    )
    monkeypatch.setattr(Intervals, "is_perfect", lambda *_: False)
    result = train("folder", *ALL)
    folder = Path("folder")
    learners = {row["settings"]["learner"] for row in board(folder)["candidates"]}
    assert learners == {"linear", "network", "hf:encoder, finetuned"}
    model = attittud_lab.load(folder)
    assert [group.reader is None for group in model.networks] == [True, False]
    texts, labels = texts_of_the_test_set(folder)
    right = np.array(model.predict(texts)) == np.array(labels)
    assert result.test["accuracy"] == pytest.approx(right.mean())
    likely = model.predict_proba(texts)
    # One text at a time gives the same probabilities.
    alone = np.concatenate([model.predict_proba(text) for text in texts[:3]])
    np.testing.assert_allclose(alone, likely[:3], atol=1e-5)
    with pytest.raises(InputError, match=r"read texts in different ways.*attittud predict"):
        model.export(Path("model.pt2"))


def texts_of_the_test_set(folder: Path) -> tuple[list[str], list[str]]:
    lines = [json.loads(line) for line in Path("labelled.jsonl").read_text().splitlines()]
    rows = json.loads((folder / "data.json").read_text())["primary"]["test"]["rows"]
    return [lines[row]["text"] for row in rows], [lines[row]["label"] for row in rows]


def train(folder: str, *changes: str, **options: Any) -> Any:
    return run(load("job.yaml", changes), folder, **options)


def stopping_after(count: int) -> Any:
    """A stand-in for `run_trial` that is interrupted after this many trials."""
    original = networks.run_trial
    done: list[Any] = []

    def stopped(*arguments: Any) -> Any:
        if len(done) == count:
            raise KeyboardInterrupt
        done.append(original(*arguments))
        return done[-1]

    return stopped


@pytest.mark.parametrize("final", ["single", "ensemble"])
def test_a_killed_run_ends_with_the_same_bits(final, monkeypatch):
    write_texts()
    changes = [f"portfolio.final={final}", "portfolio.candidates=[pretrain]"]
    train("whole", *changes)
    for count in (0, 2):
        with monkeypatch.context() as patched:
            patched.setattr(networks, "run_trial", stopping_after(count))
            with pytest.raises(KeyboardInterrupt):
                train("killed", *changes)
    told = Told()
    train("killed", *changes, progress=told)
    assert any(line.startswith("continuing") for line in told.lines)
    assert outcome(Path("whole")) == outcome(Path("killed"))


def test_guided_strategies_and_several_features_are_tried_if_they_are_named():
    write_images()
    tiny_images(Path("second"), "ViTForImageClassification")
    changes = ['portfolio.features=["hf:encoder", "hf:second"]']
    train("folder", *changes, "portfolio.candidates=[{name: drop_harmful, rank: 2}]")
    rows = board(Path("folder"))["candidates"]
    assert {row["label"] for row in rows if not row["for_comparison"]} == {
        f"hf:{name}, finetuned, {strategy}"
        for name in ("encoder", "second")
        for strategy in ("primary_only", "drop_harmful, rank=2")
    }


@pytest.mark.parametrize(
    ("job", "changes", "culprits"),
    [
        ("", ["portfolio.learners=[finetuned]"], ["finetuned", "columns"]),
        (TEXTS, ["portfolio.features=[tfidf]"], ["finetuned", "tfidf", "minilm"]),
        (IMAGES, ["portfolio.features=[histogram]"], ["finetuned", "histogram", "efficientnet"]),
        (TEXTS, ["portfolio.learners=[fintuned]"], ["portfolio.learners", "finetuned"]),
        (TEXTS, ["portfolio.finetuned.steps=0"], ["portfolio.finetuned.steps"]),
        (TEXTS, ["portfolio.finetuned.augment=[turn]"], ["portfolio.finetuned.augment"]),
        (TEXTS, ["strategy=multitask", "training.augment=[flip]"], ["training.augment"]),
    ],
)
def test_a_job_without_a_pretrained_network_is_refused(job, changes, culprits, capsys):
    write_texts()
    Path("job.yaml").write_text(job or table_job(Path()))
    assert call("train", "job.yaml", *changes, "--quiet") == 2
    error = capsys.readouterr().err
    for culprit in culprits:
        assert culprit in error


def test_the_budget_is_divided_among_learners_of_networks(monkeypatch):
    write_texts()
    limits: list[Any] = []
    monkeypatch.setattr(
        budget, "plan", lambda *given, **_: plan(*given[:-1], limits.append(given[-1]))
    )
    train("folder", "portfolio.learners=[network, finetuned]", "portfolio.budget=1h")
    assert limits == pytest.approx([1800, 1800], abs=300)  # some time was used before
