"""The use *stacked*: what models of the sources say about an example becomes further features of
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from attittud_lab.learners import Setting, SimpleLearner
from attittud_lab.learners.logistic import mean_length
from attittud_lab.uses.base import (
    FurtherColumns,
    SourceModels,
    Use,
    UsedModel,
    centred_scores,
    crossed,
    with_columns,
)
from attittud_lab.uses.problem import Problem, SourceData, training_rows

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

    def settings(self, learner: SimpleLearner, several: bool) -> Sequence[Setting]:
        return crossed(learner.settings(several), "length", LENGTHS)

    def fits(
        self,
        training: Problem,
        sources: Sequence[SourceData],
        models: SourceModels,
        learner: SimpleLearner,
        settings: Sequence[Setting],
        seed: int,
    ) -> Iterator[UsedModel]:
        source_models = [models.model(source.name) for source in sources]
        lengths = [mean_length(centred_scores(model, training.features)) for model in source_models]
        unit = mean_length(training.features) / np.sqrt(len(sources))
        for length, group in groupby(settings, key=lambda setting: setting["length"]):
            further = tuple(
                FurtherColumns(model, float(length * unit / source_length))
                for model, source_length in zip(source_models, lengths, strict=True)
            )
            rows = training_rows(training)
            rows = replace(rows, features=with_columns(training.features, further))
            for fitted in learner.fits(rows, list(group), seed):
                yield UsedModel(fitted, further)
