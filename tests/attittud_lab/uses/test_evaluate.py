"""Candidates out of fold: no leak, the same numbers again, and models that survive being saved."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load, save

from attittud_lab.errors import InputError
from attittud_lab.learners import find_learner, learners
from attittud_lab.learners.base import log_softmax
from attittud_lab.learners.trees import ExtraTrees
from attittud_lab.uses import find_use, translated, uses
from attittud_lab.uses.base import SOURCE_LEARNER
from attittud_lab.uses.candidates import default_candidates
from attittud_lab.uses.evaluate import SimpleModel, best_temperature, cooled, evaluate, fit_final
from attittud_lab.uses.problem import Problem, SimpleCandidate, SourceData, log_loss

CLASSES = ["a", "b", "c"]
FAST = {"boosting": {"rounds": 8}}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(ExtraTrees, "trees", 10)
    monkeypatch.setattr(translated, "ROUNDS", 2)


def source(generator, name, rows, same_classes=True):
    features = generator.normal(size=(rows, 6)).astype(np.float32)
    labels = features[:, :3].argmax(axis=1) if same_classes else (features[:, 0] > 0).astype(int)
    classes = CLASSES if same_classes else ["low", "high"]
    return SourceData(name, features, labels, classes, same_classes)


def problem(seed=0, rows=60, random=False, several=False):
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(rows, 6)).astype(np.float32)
    labels = features[:, :3].argmax(axis=1)
    if random:
        labels = generator.permutation(np.arange(rows) % 3)
    if several:
        labels = (features[:, :3] > 0).astype(int)
        if random:
            labels = generator.integers(0, 2, labels.shape)
        labels[3, 0] = -1
    same = source(generator, "same", 90)
    other = source(generator, "other", 80, same_classes=False)
    if several:
        same = replace(same, labels=(same.features[:, :3] > 0).astype(int))
    return Problem(features, labels, CLASSES, several, {"same": same, "other": other})


def candidates(learner="linear"):
    """A learner with every use."""
    return default_candidates(problem(), "numbers", [learner], uses())


def folds(rows, seed=0, count=3):
    return np.random.default_rng(seed).permutation(np.arange(rows) % count)


def once(monkeypatch, name):
    """Leave one setting to a learner and to each use, so that every fit is fast."""
    learner = find_learner(name)
    setting = {**learner.settings(several=False)[0], **FAST.get(name, {})}
    for method in ("settings", "fewer_settings"):
        monkeypatch.setattr(type(learner), method, lambda self, several: [setting])
    for use in map(find_use, uses()):
        last = use.settings(learner, several=False)[-1:]
        monkeypatch.setattr(type(use), "settings", lambda self, learner, several, last=last: last)


@pytest.mark.parametrize("several", [False, True], ids=["classes", "labels"])
@pytest.mark.parametrize("learner", learners())
def test_scores_of_a_fold_do_not_depend_on_its_labels(learner, several, monkeypatch):
    """To the bit: whatever is fitted for a fold has seen none of its labels."""
    once(monkeypatch, learner)
    whole = problem(several=several)
    of = folds(60)
    held_out = of == 1
    labels = whole.labels.copy()
    labels[held_out] = (labels[held_out] + 1) % (2 if several else 3)
    entries = candidates(learner)
    first = evaluate(whole, of, entries)
    second = evaluate(replace(whole, labels=labels), of, entries)
    changed_others = 0
    for one, two in zip(first, second, strict=True):
        before = cooled(one.outputs, 1 / one.temperature, several=several)
        after = cooled(two.outputs, 1 / two.temperature, several=several)
        label = one.candidate.label
        np.testing.assert_allclose(before[held_out], after[held_out], atol=1e-8, err_msg=label)
        changed_others += not np.allclose(before[~held_out], after[~held_out], atol=1e-3)
    assert changed_others == len(entries)


@pytest.mark.parametrize("learner", learners())
def test_random_labels_are_predicted_as_well_as_chance(learner, monkeypatch):
    """Mean accuracy over many draws; a leak of one label in ten would be seen."""
    draws = 12 if learner == SOURCE_LEARNER else 4
    if learner != SOURCE_LEARNER:
        once(monkeypatch, learner)
    accuracies = {}
    for seed in range(draws):
        whole = problem(seed, rows=150, random=True)
        for evaluation in evaluate(whole, folds(150, seed), candidates(learner), seed):
            right = evaluation.outputs.argmax(axis=1) == whole.labels
            accuracies.setdefault(evaluation.candidate.label, []).append(right.mean())
    means = {label: float(np.mean(values)) for label, values in accuracies.items()}
    error = np.sqrt(2 / 9 / (150 * draws))
    assert max(means.values()) < 1 / 3 + 3.5 * error, means


@pytest.mark.parametrize("several", [False, True], ids=["classes", "labels"])
def test_the_final_model_predicts_new_rows_and_survives_json_and_safetensors(several):
    whole = problem(several=several)
    new = problem(seed=5, rows=300, several=several)
    for evaluation in evaluate(whole, folds(60), candidates()):
        final = fit_final(whole, evaluation.candidate, evaluation.setting, evaluation.temperature)
        scores = final.scores(new.features)
        predicted = (scores > 0).astype(int) if several else scores.argmax(axis=1)
        assert (predicted == new.labels).mean() > 0.75, evaluation.candidate.label
        plain = json.loads(json.dumps(final.plain()))
        restored = SimpleModel.restore(plain, load(save(final.tensors())))
        assert restored.candidate == final.candidate
        np.testing.assert_array_equal(restored.scores(new.features), scores)


def test_the_same_seed_gives_the_same_numbers_and_rare_rows_are_never_held_out():
    whole = problem()
    of = folds(60)
    of[:4] = -1
    runs = (evaluate(whole, of, candidates(), seed=3) for _ in range(2))
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(one.outputs, two.outputs)
        assert np.isnan(one.outputs[:4]).all()
        assert not np.isnan(one.outputs[4:]).any()
        assert one.loss == log_loss(one.outputs[4:], whole.labels[4:])
        assert one.setting == two.setting


@pytest.mark.parametrize("several", [False, True])
def test_the_temperature_undoes_a_factor(several):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(4000, 3))
    if several:
        labels = (generator.random((4000, 3)) < 1 / (1 + np.exp(-logits))).astype(int)
        scores = logits
    else:
        scores = log_softmax(logits)
        labels = np.array([generator.choice(3, p=np.exp(row)) for row in scores])
    assert best_temperature(scores * 3, labels) == pytest.approx(3, rel=0.1)


def test_candidates_that_do_not_fit_are_refused_by_name():
    whole = problem()
    for candidate, culprit in [
        (SimpleCandidate("numbers", "linear", "pooled", ("nothing",)), "nothing"),
        (SimpleCandidate("numbers", "linear", "pooled", ("other",)), "other"),
        (SimpleCandidate("numbers", "linear", "alone", ("same",)), "alone"),
        (SimpleCandidate("numbers", "linear", "stacked"), "stacked"),
    ]:
        with pytest.raises(InputError, match=culprit):
            list(evaluate(whole, folds(60), [candidate]))
