"""The use *stacked*: what models of the sources say about an example becomes further features of
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attittud_lab.learners import Setting, SimpleLearner
from attittud_lab.learners.logistic import mean_length
from attittud_lab.uses.base import (
    FurtherColumns,
    SourceModels,
    Use,
    UsedModel,
    by_value,
    centred_scores,
    crossed,
    with_columns,
)
from attittud_lab.uses.problem import Problem, SourceData, soft_targets

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
        targets = soft_targets(training.labels, len(training.classes))
        weights = np.ones(len(targets))
        source_models = [models.model(source.name) for source in sources]
        lengths = [mean_length(centred_scores(model, training.features)) for model in source_models]
        unit = mean_length(training.features) / np.sqrt(len(sources))
        results: dict[int, UsedModel] = {}
        for (length,), numbers in by_value(settings, ["length"]).items():
            further = tuple(
                FurtherColumns(model, float(length * unit / source_length))
                for model, source_length in zip(source_models, lengths, strict=True)
            )
            features = with_columns(training.features, further)
            group = [settings[number] for number in numbers]
            fits = learner.fits(features, targets, weights, training.several, group, seed)
            for number, fitted in zip(numbers, fits, strict=True):
                results[number] = UsedModel(fitted, further)
        for number in range(len(settings)):
            yield results[number]
