"""The use *alone*: the primary labels only. What a user would do without auxiliary data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attittud_lab.learners import Setting, SimpleLearner
from attittud_lab.uses.base import SourceModels, Use, UsedModel
from attittud_lab.uses.problem import Problem, SourceData, soft_targets


class Alone(Use):
    """Fits the learner to the primary examples."""

    name = "alone"
    needs_sources = False

    def settings(self, learner: SimpleLearner, several: bool) -> Sequence[Setting]:
        return learner.settings(several)

    def fits(
        self,
        training: Problem,
        sources: Sequence[SourceData],
        models: SourceModels,
        learner: SimpleLearner,
        settings: Sequence[Setting],
        seed: int,
    ) -> Iterator[UsedModel]:
        targets = soft_targets(training.labels, len(training.classes))
        weights = np.ones(len(targets))
        for fitted in learner.fits(
            training.features, targets, weights, training.several, settings, seed
        ):
            yield UsedModel(fitted)
