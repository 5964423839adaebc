"""The use *alone*: the primary labels only. What a user would do without auxiliary data."""

from __future__ import annotations

from collections.abc import Iterator

from attittud_lab.learners import Settings, SimpleLearner
from attittud_lab.uses.base import Fitting, Use, UsedModel
from attittud_lab.uses.problem import training_rows


class Alone(Use):
    """Fits the learner to the primary examples."""

    name = "alone"
    needs_sources = False

    def settings(self, learner: SimpleLearner, several: bool) -> Settings:
        return learner.settings(several)

    def fits(self, fitting: Fitting) -> Iterator[UsedModel]:
        rows = training_rows(fitting.training)
        return map(UsedModel, fitting.fits(rows, fitting.settings))
