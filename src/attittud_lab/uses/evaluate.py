"""Candidates out of fold, and the model that is made of the best one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from torch import Tensor

from attittud_lab.errors import InputError, listed
from attittud_lab.features.base import Matrix
from attittud_lab.learners import Numbers, Setting, find_learner, plain_fitted, restore_fitted
from attittud_lab.learners.base import log_softmax
from attittud_lab.uses import find_use
from attittud_lab.uses.base import Fitting, FurtherColumns, SourceModels, UsedModel
from attittud_lab.uses.landmarks import with_fewer_columns
from attittud_lab.uses.problem import Problem, SimpleCandidate, SourceData, log_loss

_COLDEST = 0.2  # the range in which a temperature is searched for
_HOTTEST = 5.0


@dataclass(frozen=True)
class Evaluation:
    """A candidate on examples that its models had not seen."""

    candidate: SimpleCandidate
    outputs: Numbers
    """Out-of-fold scores, n x classes, divided by the temperature; NaN for examples that are never
    held out.
    """
    setting: Setting
    """What the folds chose."""
    temperature: float
    """Scores are divided by it, so that the log-losses of different learners can be compared."""
    loss: float
    """The mean log-loss of the outputs."""
    seconds: float


@dataclass(frozen=True)
class SimpleModel:
    """A candidate that was fitted to all primary examples."""

    candidate: SimpleCandidate
    setting: Setting
    temperature: float
    several: bool
    used: UsedModel

    def scores(self, features: Matrix) -> Numbers:
        """Return log-probabilities, rows x classes; with several labels at once logits, rows x
        labels.
        """
        return cooled(self.used.scores(features), self.temperature, several=self.several)

    def plain(self) -> dict[str, Any]:
        """Return everything but arrays, as JSON can hold it."""
        further = []
        for part in self.used.further:
            further.append({"factor": part.factor, "model": plain_fitted(part.model)})
        return {
            "candidate": {**asdict(self.candidate), "sources": list(self.candidate.sources)},
            "setting": dict(self.setting),
            "temperature": self.temperature,
            "several": self.several,
            "fitted": plain_fitted(self.used.fitted),
            "further": further,
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays, as safetensors can hold them."""
        tensors = _prefixed("fitted.", self.used.fitted.tensors())
        for number, part in enumerate(self.used.further):
            tensors |= _prefixed(f"further.{number}.", part.model.tensors())
        return tensors

    @classmethod
    def restore(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> SimpleModel:
        """Make the model from what `plain` and `tensors` returned."""
        fitted = restore_fitted(plain["fitted"], _below("fitted.", tensors))
        further = []
        for number, part in enumerate(plain["further"]):
            model = restore_fitted(part["model"], _below(f"further.{number}.", tensors))
            further.append(FurtherColumns(model, float(part["factor"])))
        sources = tuple(plain["candidate"]["sources"])
        candidate = SimpleCandidate(**{**plain["candidate"], "sources": sources})
        used = UsedModel(fitted, tuple(further))
        setting = dict(plain["setting"])
        return cls(candidate, setting, float(plain["temperature"]), bool(plain["several"]), used)


def evaluate(
    problem: Problem,
    folds: npt.NDArray[np.int64],
    candidates: Sequence[SimpleCandidate],
    seed: int = 0,
) -> Iterator[Evaluation]:
    """Yield each candidate with its out-of-fold scores, in the order of `candidates`.

    Settings are chosen by the log-loss on the same folds. Nothing that is fitted for a fold sees a
    label of the examples that are held out. Sparse features are first replaced by fewer columns,
    see landmarks.py.

    Args:
        problem: primary examples and sources, whose features are the ones that the candidates name.
        folds: the fold of each primary example; -1 for those that always train.
        candidates: of one kind of features.
        seed: of everything random.
    """
    problem = with_fewer_columns(problem, seed)
    models = SourceModels(problem.sources, seed)
    for candidate in candidates:
        yield _evaluate(problem, folds, candidate, models, seed)


def _evaluate(
    problem: Problem,
    folds: npt.NDArray[np.int64],
    candidate: SimpleCandidate,
    models: SourceModels,
    seed: int,
) -> Evaluation:
    """Fit a candidate on every fold with every setting; return the scores of the setting with the
    lowest log-loss on the examples that are held out.
    """
    began = time.perf_counter()
    learner = find_learner(candidate.learner)
    use = find_use(candidate.use)
    sources = _sources(problem, candidate)
    settings = use.settings(learner, problem.several)
    outputs = np.full((len(settings), len(problem.labels), len(problem.classes)), np.nan)
    fold_count = int(folds.max()) + 1
    for fold in range(fold_count):
        held_out = np.flatnonzero(folds == fold)
        training = problem.rows(np.flatnonzero(folds != fold))
        features = problem.rows(held_out).features
        fitting = Fitting(training, sources, models, learner, settings, seed)
        for number, model in enumerate(use.fits(fitting)):
            outputs[number, held_out] = model.scores(features)
    ever_held_out = np.flatnonzero(folds >= 0)
    labels = problem.labels[ever_held_out]
    losses = [log_loss(scores[ever_held_out], labels) for scores in outputs]
    best = int(np.argmin(losses))
    temperature = best_temperature(outputs[best][ever_held_out], labels)
    scores = cooled(outputs[best], temperature, several=problem.several)
    loss = log_loss(scores[ever_held_out], labels)
    seconds = time.perf_counter() - began
    return Evaluation(candidate, scores, settings[best], temperature, loss, seconds)


def fit_final(
    problem: Problem,
    candidate: SimpleCandidate,
    setting: Setting,
    temperature: float = 1.0,
    seed: int = 0,
    models: SourceModels | None = None,
) -> SimpleModel:
    """Fit a candidate to all primary examples, with the setting and the temperature of its
    evaluation.
    """
    learner = find_learner(candidate.learner)
    use = find_use(candidate.use)
    sources = _sources(problem, candidate)
    models = models or SourceModels(problem.sources, seed)
    used = next(use.fits(Fitting(problem, sources, models, learner, [setting], seed)))
    return SimpleModel(candidate, setting, temperature, problem.several, used)


def _sources(problem: Problem, candidate: SimpleCandidate) -> list[SourceData]:
    """Return the sources of a candidate; refuses a candidate that the problem does not allow."""
    unknown = [name for name in candidate.sources if name not in problem.sources]
    if unknown:
        raise InputError(
            f"{candidate.label}: there is no source {listed(unknown)}; the sources are "
            f"{listed(problem.sources)}"
        )
    use = find_use(candidate.use)
    if use.needs_sources != bool(candidate.sources):
        advice = "name no source"
        if use.needs_sources:
            advice = "name at least one source"
        raise InputError(f"{candidate.label}: does not fit the use {use.name}; {advice}")
    sources = [problem.sources[name] for name in candidate.sources]
    objection = use.objection(problem, sources)
    if objection:
        raise InputError(f"{candidate.label}: {objection}; choose another use for it")
    return sources


def best_temperature(scores: Numbers, labels: npt.NDArray[np.int64]) -> float:
    """Return the number by which scores are divided for the lowest log-loss.

    It is searched for on a logarithmic scale, from `_COLDEST` to `_HOTTEST`.
    """
    several = labels.ndim == 2

    def loss(log_temperature: float) -> float:
        """Return the log-loss at a temperature, given by its logarithm."""
        return log_loss(cooled(scores, float(np.exp(log_temperature)), several=several), labels)

    bounds = (float(np.log(_COLDEST)), float(np.log(_HOTTEST)))
    minimum = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return float(np.exp(minimum.x))


def cooled(scores: Numbers, temperature: float, *, several: bool) -> Numbers:
    """Return scores that are divided by a temperature and, as log-probabilities, normalised
    again.
    """
    divided: Numbers = scores / temperature
    if several:
        return divided
    return log_softmax(divided)


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with a prefix before their names."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without the prefix."""
    below = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            below[name.removeprefix(prefix)] = tensor
    return below
