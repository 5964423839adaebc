"""The interface of a use: how the auxiliary sources take part when a learner is fitted to primary
examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attittud_lab.features.base import Matrix
from attittud_lab.learners import (
    Fitted,
    Numbers,
    Setting,
    Settings,
    SimpleLearner,
    TrainingRows,
    find_learner,
)
from attittud_lab.learners.base import stack_columns
from attittud_lab.uses.problem import Problem, SourceData, log_loss, training_rows

SOURCE_LEARNER = "linear"
"""The learner of all models of sources: fast, and its probabilities are calibrated."""
HELD_OUT = 5
"""One of this many parts of a source is held out to choose the setting of its model."""


class SourceModels:
    """One model for each source, fitted to the source alone when it is first asked for.

    It never sees a primary label, so all folds of the primary examples share it.
    """

    def __init__(self, sources: Mapping[str, SourceData], seed: int) -> None:
        self._sources = sources
        self._seed = seed
        self._models: dict[str, Fitted] = {}

    def model(self, name: str) -> Fitted:
        """Return the model of a source."""
        if name not in self._models:
            self._models[name] = fit_source(self._sources[name].labelled, self._seed)
        return self._models[name]


def fit_source(source: SourceData, seed: int) -> Fitted:
    """Fit a model to a source; a part of the source that is held out chooses the setting, and then
    trains too.
    """
    learner = find_learner(SOURCE_LEARNER)
    settings = learner.settings(source.several)
    losses = _losses_by_setting(source, settings, seed)
    best = len(settings) // 2
    if losses:
        best = int(np.argmin(losses))
    return learner.fit(training_rows(source), settings[best], seed)


def held_out_loss(source: SourceData, seed: int) -> float:
    """Return the mean log-loss of the best setting on the part of a source that is held out."""
    settings = find_learner(SOURCE_LEARNER).settings(source.several)
    return min(_losses_by_setting(source, settings, seed), default=0.0)


def _losses_by_setting(source: SourceData, settings: Settings, seed: int) -> list[float]:
    """Return the log-loss of each setting on the part that is held out; nothing for a source that
    is too small to be divided.
    """
    part = np.random.default_rng(seed).permutation(len(source.labels)) % HELD_OUT
    train = source.rows(np.flatnonzero(part != 0))
    held_out = source.rows(np.flatnonzero(part == 0))
    if not len(train.labels) or not len(held_out.labels):
        return []
    models = find_learner(SOURCE_LEARNER).fits(training_rows(train), settings, seed)
    return [log_loss(model.scores(held_out.features), held_out.labels) for model in models]


@dataclass(frozen=True)
class FurtherColumns:
    """Scores of a source's model as further features: centred in each row, times `factor`."""

    model: Fitted
    factor: float

    def columns(self, features: Matrix) -> npt.NDArray[np.float32]:
        """Return rows x classes of the source."""
        return np.asarray(centred_scores(self.model, features) * self.factor, dtype=np.float32)


def centred_scores(model: Fitted, features: Matrix) -> Numbers:
    """Return log-probabilities minus their mean over the classes, as all that matters is their
    differences.
    """
    scores = model.scores(features)
    if scores.shape[1] <= 1:
        return scores
    centred: Numbers = scores - scores.mean(axis=1, keepdims=True)
    return centred


@dataclass(frozen=True)
class UsedModel:
    """What a use makes of primary examples and sources: a model of the features, and of columns
    that models add.
    """

    fitted: Fitted
    further: tuple[FurtherColumns, ...] = ()

    def scores(self, features: Matrix) -> Numbers:
        """Return log-probabilities, rows x classes; with several labels at once logits."""
        return self.fitted.scores(with_columns(features, self.further))


def with_columns(features: Matrix, further: Sequence[FurtherColumns]) -> Matrix:
    """Return features with the columns that models of sources add."""
    if not further:
        return features
    parts = [features]
    for columns in further:
        parts.append(columns.columns(features))
    return stack_columns(parts)


@dataclass(frozen=True)
class Fitting:
    """What a use fits, and to what."""

    training: Problem
    """The problem with the primary examples that train, and no others."""
    sources: Sequence[SourceData]
    """The sources that take part."""
    models: SourceModels
    learner: SimpleLearner
    settings: Settings
    """Some of the settings that the use has for the learner."""
    seed: int
    """Of everything random."""

    def fits(self, rows: TrainingRows, settings: Iterable[Setting]) -> Iterator[Fitted]:
        """Yield a model of the learner for each setting."""
        return self.learner.fits(rows, list(settings), self.seed)

    def by(self, name: str) -> Iterator[tuple[float, Iterator[Setting]]]:
        """Yield every value of a setting of the use, with the settings that have it."""
        return groupby(self.settings, key=itemgetter(name))


class Use(ABC):
    """One way to use auxiliary sources."""

    name: ClassVar[str]
    needs_sources: ClassVar[bool] = True

    def objection(self, problem: Problem, sources: Sequence[SourceData]) -> str | None:
        """Return why these sources cannot be used like this; None if they can."""
        return None

    @abstractmethod
    def settings(self, learner: SimpleLearner, several: bool) -> Settings:
        """Return the settings that folds choose from: those of the learner, and those of the
        use.
        """

    @abstractmethod
    def fits(self, fitting: Fitting) -> Iterator[UsedModel]:
        """Yield one model for each setting, in the order of `fitting.settings`."""


def crossed(settings: Settings, name: str, values: Sequence[float]) -> list[Setting]:
    """Return every setting with every value of one more setting."""
    return [{**setting, name: value} for value, setting in product(values, settings)]
