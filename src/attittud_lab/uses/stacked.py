"""The use *stacked*: what models of the sources say about an example becomes further features of
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attittud_lab.learners import Settings, SimpleLearner
from attittud_lab.learners.logistic import mean_length
from attittud_lab.uses.base import (
    Fitting,
    FurtherColumns,
    Use,
    UsedModel,
    centred_scores,
    crossed,
    with_columns,
)
from attittud_lab.uses.problem import training_rows

LENGTHS = (0.5, 1.5, 5.0)
"""How long the columns of all sources together are, as a multiple of the length of the other
features.
"""


class Stacked(Use):
    """Fits the learner to the features and to the scores of the sources' models: any classes, any
    number of sources.

    The models were fitted to other examples than the primary ones, so their scores are as good for
    training rows as for new rows.
    """

    name = "stacked"

    def settings(self, learner: SimpleLearner, several: bool) -> Settings:
        return crossed(learner.settings(several), "length", LENGTHS)

    def fits(self, fitting: Fitting) -> Iterator[UsedModel]:
        """Yield a model of the primary rows with the columns of all sources, for each setting."""
        rows = training_rows(fitting.training)
        models = [fitting.models.model(source.name) for source in fitting.sources]
        source_lengths = []
        for model in models:
            source_lengths.append(mean_length(centred_scores(model, rows.features)))
        # Each of k sources gets 1 / √k of the length that all have together.
        unit = mean_length(rows.features) / np.sqrt(len(models))
        for length, settings in fitting.by("length"):
            further_columns = []
            for model, source_length in zip(models, source_lengths, strict=True):
                factor = float(length * unit / source_length)
                further_columns.append(FurtherColumns(model, factor))
            further = tuple(further_columns)
            longer = replace(rows, features=with_columns(rows.features, further))
            for fitted in fitting.fits(longer, settings):
                yield UsedModel(fitted, further)
