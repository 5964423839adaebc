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
from attittud_lab.learners.base import sigmoid, stack_columns
from attittud_lab.uses.problem import Problem, SourceData, log_loss, training_rows

SOURCE_LEARNER = "linear"
"""The learner of all models of sources: fast, and its probabilities are calibrated."""
HELD_OUT = 5
"""One of this many parts of a source is held out to choose the setting of its model."""
_SMALLEST = 1e-12


Tried = tuple[list[float], list[Fitted]]
"""The log-loss of each setting on the part of a source that is held out, and its model."""


class SourceModels:
    """One model for each source, fitted to the source alone when it is first asked for.

    It never sees a primary label, so all folds of the primary examples share it.
    """

    def __init__(self, sources: Mapping[str, SourceData], seed: int) -> None:
        self._sources = sources
        self._seed = seed
        self._tried: dict[str, Tried] = {}
        self._models: dict[str, Fitted] = {}

    def model(self, name: str) -> Fitted:
        """Return the model of a source."""
        if name not in self._models:
            source = self._sources[name].labelled
            self._models[name] = _best_model(source, self._seed, self._settings_of(name))
        return self._models[name]

    def own_meanings(self, name: str) -> Numbers:
        """Return how often a model of a source is right about each of the source's own labels."""
        source = self._sources[name].labelled
        return _own_meanings(source, self._seed, self._settings_of(name))

    def _settings_of(self, name: str) -> Tried:
        """Return what was tried for a source, which takes most of the time, once."""
        if name not in self._tried:
            self._tried[name] = _tried_settings(self._sources[name].labelled, self._seed)
        return self._tried[name]


def fit_source(source: SourceData, seed: int) -> Fitted:
    """Fit a model to a source; a part of the source that is held out chooses the setting, and then
    trains too.
    """
    return _best_model(source, seed, _tried_settings(source, seed))


def _best_model(source: SourceData, seed: int, tried: Tried) -> Fitted:
    """Fit the best setting to the whole source; a source that is too small to be divided gets the
    middle setting.
    """
    learner = find_learner(SOURCE_LEARNER)
    settings = learner.settings(source.several)
    losses, _ = tried
    best = len(settings) // 2
    if losses:
        best = int(np.argmin(losses))
    return learner.fit(training_rows(source), settings[best], seed)


def held_out_loss(source: SourceData, seed: int) -> float:
    """Return the mean log-loss of the best setting on the part of a source that is held out; 0 for
    a source that is too small to be divided.
    """
    losses, _ = _tried_settings(source, seed)
    return min(losses, default=0.0)


def _own_meanings(source: SourceData, seed: int, tried: Tried) -> Numbers:
    """Return how often a model of a source is right about each of the source's own labels.

    For label a this is Σ_{i: a_i = a} p(a|x_i) / Σ_i p(a|x_i): the share of examples with the label
    a among those that the model says have it. The sums are over the part of the source that is held
    out; NaN for a label without examples there. A channel with right labels has meanings of this
    size. They are far below 1 where the model does not fit the source.
    """
    losses, models = tried
    if not losses:
        return np.full(len(source.classes), np.nan)
    held_out = _parts(source, seed)[1]
    scores = models[int(np.argmin(losses))].scores(held_out.features)
    if source.several:
        likely = np.where(held_out.labels >= 0, sigmoid(scores), 0)
        has_label = held_out.labels == 1
    else:
        likely = np.exp(scores)
        has_label = held_out.labels[:, None] == np.arange(len(source.classes))
    total = likely.sum(axis=0)
    shares = (likely * has_label).sum(axis=0) / np.maximum(total, _SMALLEST)
    return np.where(has_label.any(axis=0), shares, np.nan)


def _tried_settings(source: SourceData, seed: int) -> Tried:
    """Fit a model with each setting to one part of a source; return the log-losses on the part that
    is held out, and the models. Both lists are empty if the source is too small to be divided.
    """
    learner = find_learner(SOURCE_LEARNER)
    train, held_out = _parts(source, seed)
    if not len(train.labels) or not len(held_out.labels):
        return [], []
    settings = learner.settings(source.several)
    models = list(learner.fits(training_rows(train), settings, seed))
    losses = [log_loss(model.scores(held_out.features), held_out.labels) for model in models]
    return losses, models


def _parts(source: SourceData, seed: int) -> tuple[SourceData, SourceData]:
    """Return the part of a source that trains and the part that is held out."""
    draws = np.random.default_rng(seed).permutation(len(source.labels))
    is_held_out = draws % HELD_OUT == 0
    return source.rows(np.flatnonzero(~is_held_out)), source.rows(np.flatnonzero(is_held_out))


@dataclass(frozen=True)
class FurtherColumns:
    """Scores of a source's model as further features: centred in each row, times `factor`."""

    model: Fitted
    factor: float

    def columns(self, features: Matrix) -> npt.NDArray[np.float32]:
        """Return the columns for rows of features: one for each class of the source."""
        return np.asarray(centred_scores(self.model, features) * self.factor, dtype=np.float32)


def centred_scores(model: Fitted, features: Matrix) -> Numbers:
    """Return the scores of rows minus the mean of each row, since only differences between classes
    matter. A single column, the logit of one label, stays as it is.
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
    """The seed of everything random."""

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
