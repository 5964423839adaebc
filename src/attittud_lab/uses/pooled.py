"""The use *pooled*: rows of sources with the primary classes train like primary rows, with a weight
of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from attittud_lab.errors import listed
from attittud_lab.learners import Setting, SimpleLearner, TrainingRows
from attittud_lab.learners.base import stack_rows
from attittud_lab.uses.base import SourceModels, Use, UsedModel, crossed
from attittud_lab.uses.problem import Problem, SourceData, soft_targets

WEIGHTS = (0.03, 0.2, 1.0)
"""Weights of an auxiliary row; a primary row has weight 1."""


class Pooled(Use):
    """Fits the learner to primary and auxiliary rows together."""

    name = "pooled"

    def objection(self, problem: Problem, sources: Sequence[SourceData]) -> str | None:
        others = [source.name for source in sources if not source.same_classes]
        if others:
            return f"{listed(others)}: other classes than the primary task cannot be pooled"
        return None

    def settings(self, learner: SimpleLearner, several: bool) -> Sequence[Setting]:
        return crossed(learner.settings(several), "weight", WEIGHTS)

    def fits(
        self,
        training: Problem,
        sources: Sequence[SourceData],
        models: SourceModels,
        learner: SimpleLearner,
        settings: Sequence[Setting],
        seed: int,
    ) -> Iterator[UsedModel]:
        count = len(training.labels)
        labelled = [source.labelled for source in sources]
        features = stack_rows([training.features, *(source.features for source in labelled)])
        labels = [training.labels, *(source.labels for source in labelled)]
        targets = np.concatenate([soft_targets(part, len(training.classes)) for part in labels])
        for weight, group in groupby(settings, key=lambda setting: setting["weight"]):
            weights = np.full(len(targets), weight)
            weights[:count] = 1
            rows = TrainingRows(features, targets, training.several, weights)
            for fitted in learner.fits(rows, list(group), seed):
                yield UsedModel(fitted)
