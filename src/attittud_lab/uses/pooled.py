"""The use *pooled*: rows of sources with the primary classes train like primary rows, with a weight
of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attittud_lab.errors import listed
from attittud_lab.learners import Settings, SimpleLearner, TrainingRows
from attittud_lab.learners.base import stack_rows
from attittud_lab.uses.base import Fitting, Use, UsedModel, crossed
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

    def settings(self, learner: SimpleLearner, several: bool) -> Settings:
        return crossed(learner.settings(several), "weight", WEIGHTS)

    def fits(self, fitting: Fitting) -> Iterator[UsedModel]:
        """Yield a model of all rows, primary and auxiliary, for each setting."""
        training = fitting.training
        features = [training.features]
        targets = [soft_targets(training.labels, len(training.classes))]
        for source in fitting.sources:
            labelled = source.labelled
            features.append(labelled.features)
            targets.append(soft_targets(labelled.labels, len(training.classes)))
        all_features = stack_rows(features)
        all_targets = np.concatenate(targets)
        for weight, settings in fitting.by("weight"):
            weights = np.full(len(all_targets), weight)
            weights[: len(training.labels)] = 1  # the primary rows come first
            rows = TrainingRows(all_features, all_targets, training.several, weights)
            yield from map(UsedModel, fitting.fits(rows, settings))
