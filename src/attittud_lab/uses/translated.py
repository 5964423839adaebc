"""The use *translated*: auxiliary rows train on what their labels mean for the primary classes,
says a label channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from attittud import LabelChannel
from attittud_lab.learners import Fitted, Numbers, Settings, SimpleLearner, TrainingRows
from attittud_lab.learners.base import stack_rows
from attittud_lab.uses.base import Fitting, SourceModels, Use, UsedModel, crossed
from attittud_lab.uses.problem import Problem, SourceData, training_rows

WEIGHTS = (0.1, 1.0)
"""Weights of an auxiliary row at openness 1; a primary row has weight 1."""
ROUNDS = 3
"""How often labels are translated, first by the learner alone and then by the model that the last
round made.
"""


class Translated(Use):
    """Fits the learner to primary rows and to auxiliary rows whose targets are what their labels
    mean.

    A channel C of the training rows says how often primary class c has auxiliary label a. With
    p(c|x) of the learner alone, an auxiliary row gets the targets q(c) ∝ p(c|x) C[c, a] and the
    weight λ · weight, where λ is the openness of the channel. The model that results gives the next
    p, so the rounds are those of the EM algorithm for the likelihood Σ_c p(c|x) C[c, a] of the
    auxiliary labels.

    At λ = 0 a source has no rows: without an open source the model is the learner alone, to the
    bit. Where a source has several labels for a row, q is the mean over these labels, weighted by
    their openness. Where the primary task has several labels, each has a channel of its own, and
    one with λ = 0 has no target in auxiliary rows.
    """

    name = "translated"

    def settings(self, learner: SimpleLearner, several: bool) -> Settings:
        return crossed(learner.fewer_settings(several), "weight", WEIGHTS)

    def fits(self, fitting: Fitting) -> Iterator[UsedModel]:
        """Yield a model for each setting: that of the learner alone, fitted anew `ROUNDS` times with
        the rows of all open sources.
        """
        training = fitting.training
        seed = fitting.seed
        rows = training_rows(training)
        translations = []
        for source in fitting.sources:
            translation = Translation.estimate(source, training, fitting.models, seed)
            if translation.weight > 0:
                translations.append(translation)
        models_alone = fitting.fits(rows, fitting.settings)
        if not translations:
            yield from map(UsedModel, models_alone)
            return
        # Primary rows come first, then those of each source.
        features = stack_rows([rows.features, *(part.source.features for part in translations)])
        for setting, model_alone in zip(fitting.settings, models_alone, strict=True):
            weights = [rows.weights]
            for part in translations:
                count = len(part.source.labels)
                weights.append(np.full(count, setting["weight"] * part.weight))
            all_weights = np.concatenate(weights)
            model = model_alone
            for _ in range(ROUNDS):
                translated = [part.targets(model) for part in translations]
                targets = np.concatenate([rows.targets, *translated])
                all_rows = TrainingRows(features, targets, rows.several, all_weights)
                model = fitting.learner.fit(all_rows, setting, seed, start=model)
            yield UsedModel(model)


@dataclass(frozen=True)
class Translation:
    """A source with the channel of its labels."""

    source: SourceData
    channel: LabelChannel
    several: bool
    """Whether the primary task has several labels at once."""

    @classmethod
    def estimate(
        cls, source: SourceData, training: Problem, models: SourceModels, seed: int
    ) -> Translation:
        """Estimate the channel on the primary training rows and no others: from their primary labels,
        and from what the source's model says about them.
        """
        labelled = source.labelled
        scores = torch.from_numpy(models.model(source.name).scores(training.features))
        labels = torch.from_numpy(training.labels)
        if source.several:
            # Logits become log p(no) and log p(yes): rows x labels x 2.
            scores = torch.stack([F.logsigmoid(-scores), F.logsigmoid(scores)], dim=-1)
        shares = torch.from_numpy(label_shares(labelled))
        classes = len(training.classes)
        channel = LabelChannel.estimate(scores, labels, shares, classes=classes, seed=seed)
        return cls(labelled, channel, training.several)

    @property
    def weight(self) -> float:
        """The largest openness of its channels. There are several if the source or the primary task
        has several labels at once.
        """
        return float(self.channel.openness.max())

    def targets(self, fitted: Fitted) -> Numbers:
        """Return q for the rows of the source, rows x primary classes (or labels), given a model of
        the primary classes. A primary label without an open channel has NaN.
        """
        prior = torch.from_numpy(fitted.scores(self.source.features))
        posterior = self.channel.posterior(prior, torch.from_numpy(self.source.labels)).numpy()
        openness = self.channel.openness.numpy()
        if not self.source.several:  # its classes have one channel together
            posterior = posterior[:, None]
            openness = openness[None]
        # With several primary labels, posterior is rows x channels x labels x (no, yes) and
        # openness is channels x labels; else rows x channels x classes, and channels. The mean over
        # the channels (s) is weighted by their openness.
        total = openness.sum(axis=0)
        shares = openness / np.where(total > 0, total, 1)
        if not self.several:
            return np.asarray(np.einsum("msc,s->mc", posterior, shares))
        yes = posterior[..., 1]
        means = np.einsum("msl,sl->ml", yes, shares)
        return np.asarray(np.where(total > 0, means, np.nan))


def label_shares(source: SourceData) -> Numbers:
    """Return the share of each class among the rows of a source; with several labels at once the
    shares of no and yes for each label, labels x 2. A label without rows has the shares 1 and 0.
    """
    if not source.several:
        counts = np.bincount(source.labels, minlength=len(source.classes))
        return np.asarray(counts / counts.sum())
    labelled = (source.labels >= 0).sum(axis=0)
    yes_share = (source.labels == 1).sum(axis=0) / np.maximum(labelled, 1)
    return np.stack([1 - yes_share, yes_share], axis=1)
