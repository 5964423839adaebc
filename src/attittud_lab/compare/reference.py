"""What a user would have used instead of a network: a simple learner on the primary labels alone.

It is no row of a comparison, which compares strategies of one network. `run.py` asks for it once,
on the split of the first seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attittud_lab import features
from attittud_lab.config.schema import Config
from attittud_lab.data.prepare import PRIMARY, Prepared
from attittud_lab.errors import InputError
from attittud_lab.portfolio.folds import make_folds
from attittud_lab.portfolio.simple import ALONE, REFERENCE, few_threads
from attittud_lab.training.evaluate import figures
from attittud_lab.uses.evaluate import evaluate, fit_final
from attittud_lab.uses.problem import SimpleCandidate
from attittud_lab.uses.read import problem_of

MOST = 10_000
"""With more training and test examples it might take minutes, so it is left out."""


def simple_alone(config: Config, data: Prepared, metric: str) -> dict[str, Any] | None:
    """Return the name and the test figure of a linear learner on the training examples and cheap
    features; None if there are too many examples, or too few to choose its penalty on folds.
    """
    if len(data.primary.examples) + len(data.test) > MOST:
        return None
    try:
        folds = make_folds(data, config.portfolio, config.seed)
    except InputError:  # nothing can be held out
        return None
    with few_threads():
        name = features.cheap(data.kind)[0]
        feature_map = features.build(name, data.kind)
        feature_map.fit(data.inputs(PRIMARY))
        matrix = feature_map.transform(data.inputs(PRIMARY))
        problem = problem_of(data, {}, matrix, aligned=False)
        candidate = SimpleCandidate(name, REFERENCE, ALONE)
        # The folds choose the setting and the temperature.
        (on_folds,) = evaluate(problem, folds.fold_of, [candidate], config.seed)
        model = fit_final(problem, candidate, on_folds.setting, on_folds.temperature, config.seed)
        scores = model.scores(feature_map.transform(data.test_inputs()))
    targets = data.test.targets
    assert targets is not None
    outputs = torch.from_numpy(np.asarray(scores)).float()
    return {"label": candidate.label, "test": figures(data.primary, outputs, targets)[metric]}
