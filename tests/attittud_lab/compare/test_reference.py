"""The simple learner of a comparison, against scikit-learn."""

import numpy as np
from sklearn.linear_model import LogisticRegression

from attittud_lab.compare import reference
from attittud_lab.compare.reference import simple_alone
from attittud_lab.config.load import loads
from attittud_lab.learners.linear import PENALTIES
from attittud_lab.training.train import load_data
from tests.helpers.simple_jobs import table_job, text_job


def test_a_table_is_learned_as_by_scikit_learn(tmp_path, monkeypatch):
    config = loads(table_job(tmp_path), ["data.primary.validation=20", "data.primary.train=70"])
    data = load_data(config)
    simple = simple_alone(config, data, "accuracy")
    assert simple["label"] == "columns, linear, alone"
    rows, labels = data.primary.examples.inputs.numpy(), data.primary.examples.targets.numpy()
    mean = rows.mean(0)
    scale = np.sqrt(np.square(rows - mean).sum(1).mean())
    test = (data.test.inputs.numpy() - mean) / scale
    accuracies = []
    for penalty in PENALTIES:
        model = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=5000)
        model.fit((rows - mean) / scale, labels)
        accuracies.append(model.score(test, data.test.targets.numpy()))
    assert min(abs(simple["test"] - accuracy) for accuracy in accuracies) < 1e-6
    monkeypatch.setattr(reference, "MOST", 99)
    assert simple_alone(config, data, "accuracy") is None


def test_texts_are_read_as_they_are(tmp_path):
    config = loads(text_job(tmp_path), ["data.primary.validation=20", "data.primary.train=40"])
    simple = simple_alone(config, load_data(config), "accuracy")
    assert simple["label"] == "tfidf, linear, alone"
    assert simple["test"] > 0.6
