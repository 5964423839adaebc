"""The use *alone*: the primary labels only. What a user would do without auxiliary data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attittud_lab.learners import Setting, SimpleLearner
from attittud_lab.uses.base import SourceModels, Use, UsedModel
from attittud_lab.uses.problem import Problem, SourceData, training_rows


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
        for fitted in learner.fits(training_rows(training), settings, seed):
            yield UsedModel(fitted)
