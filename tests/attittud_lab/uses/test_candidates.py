"""The candidates that are tried by default."""

import numpy as np

from attittud_lab.uses.candidates import default_candidates
from attittud_lab.uses.problem import Problem, SourceData


def example(*sources):
    generator = np.random.default_rng(0)
    features = generator.normal(size=(30, 4)).astype(np.float32)
    labels = np.arange(30) % 2
    parts = {name: SourceData(name, features, labels, ["a", "b"], same) for name, same in sources}
    return Problem(features, labels, ["a", "b"], sources=parts)


def test_every_source_is_tried_and_all_together():
    problem = example(("same", True), ("other", False))
    choices = {}
    uses = ["alone", "pooled", "stacked"]
    for candidate in default_candidates(problem, "numbers", ["linear"], uses):
        choices.setdefault(candidate.use, []).append(candidate.sources)
    everything = [("same",), ("other",), ("same", "other")]
    assert choices == {"alone": [()], "pooled": [("same",)], "stacked": everything}
