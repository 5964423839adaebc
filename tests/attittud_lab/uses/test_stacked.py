"""The use *stacked*."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from attittud_lab.learners import find_learner
from attittud_lab.learners.logistic import mean_length
from attittud_lab.uses.base import Fitting, SourceModels
from attittud_lab.uses.problem import Problem, SourceData, training_rows
from attittud_lab.uses.stacked import Stacked


def example(form=np.asarray):
    """A source whose labels are all shifted by one class."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(1500, 100)).astype(np.float32)
    labels = features[:, :3].argmax(axis=1)
    source = SourceData(
        "shifted", form(features[540:]), (labels[540:] + 1) % 3, list("abc"), same_classes=True
    )
    problem = Problem(form(features[:40]), labels[:40], list("abc"), sources={"shifted": source})
    return problem, form(features[40:540]), labels[40:540]


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
def test_labels_that_are_all_wrong_help(form):
    problem, features, labels = example(form)
    models = SourceModels(problem.sources, 0)
    learner = find_learner("linear")
    sources = list(problem.sources.values())
    setting = {"penalty": 0.1, "length": 5.0}
    used = next(Stacked().fits(Fitting(problem, sources, models, learner, [setting], 0)))
    alone = learner.fit(training_rows(problem), {"penalty": 0.1}, 0)
    accuracy = (used.scores(features).argmax(axis=1) == labels).mean()
    assert accuracy > (alone.scores(features).argmax(axis=1) == labels).mean() + 0.2


@pytest.mark.parametrize("count", [1, 3])
def test_columns_of_all_sources_together_have_the_length_of_the_setting(count):
    problem, _, _ = example()
    one = problem.sources["shifted"]
    parts = np.array_split(np.arange(len(one.labels)), count)
    sources = [replace(one.rows(part), name=str(n)) for n, part in enumerate(parts)]
    models = SourceModels({source.name: source for source in sources}, 0)
    settings = [{"penalty": 0.1, "length": 3.0}]
    fitting = Fitting(problem, sources, models, find_learner("linear"), settings, 0)
    used = next(Stacked().fits(fitting))
    columns = np.concatenate([part.columns(problem.features) for part in used.further], axis=1)
    assert columns.shape[1] == 3 * count
    assert mean_length(columns) == pytest.approx(3 * mean_length(problem.features), rel=1e-4)
