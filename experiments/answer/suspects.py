"""How well the product's list of suspicious labels, and cleanlab's ranking, find the labels that a
pair made wrong.

Both use the features of the best simple candidate, and out-of-fold models of the same five parts of
a source. Cleanlab's default score is the predicted probability of the label, its *self-confidence*
(Northcutt et al. 2021); its package is not needed to compute it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from attittud_lab.data.prepare import Prepared
from attittud_lab.portfolio.simple import SimpleCandidates
from attittud_lab.portfolio.suspicious import PARTS, examine, probabilities
from attittud_lab.portfolio.translations import best_problem
from attittud_lab.uses.base import fit_source
from attittud_lab.uses.problem import SourceData

from .write import truth_file

AT_ONCE = 10_000
"""Seconds are told for so many examples."""


def measured(simple: SimpleCandidates, data: Prepared, folder: Path) -> dict[str, Any]:
    """Figures of every source with the primary classes, some of whose labels are wrong."""
    from sklearn.metrics import roc_auc_score

    _, problem = best_problem(simple)
    assert problem is not None
    assert data.parts is not None
    figures = {}
    for source in problem.sources.values():
        path = truth_file(folder, source.name)
        if not source.same_classes or not path.exists():
            continue
        wrong = np.load(path)[data.parts.auxiliary[source.name].rows] != source.labels
        listed = examine(problem, source, simple.seed).rows
        figures[source.name] = {
            "wrong": float(wrong.mean()),
            "listed": len(listed),
            "listed_right": int((~wrong[listed]).sum()),
        }
        if wrong.all() or not wrong.any():
            continue
        examples = np.arange(len(wrong))
        began = time.process_time()
        likely, _ = probabilities(problem, source, np.random.default_rng(simple.seed), simple.seed)
        seconds = time.process_time() - began
        figures[source.name] |= {
            "list": float(roc_auc_score(wrong, -likely[examples, source.labels])),
            "cleanlab": float(roc_auc_score(wrong, -self_confidence(source, simple.seed))),
            "seconds": seconds / len(wrong) * AT_ONCE,
        }
    return figures


def self_confidence(source: SourceData, seed: int) -> np.ndarray:
    """The probability of each label by a model of the other parts of the source."""
    part = np.random.default_rng(seed).permutation(len(source.labels)) % PARTS
    confidence = np.zeros(len(part))
    for number in range(PARTS):
        judged = np.flatnonzero(part == number)
        others = np.flatnonzero(part != number)
        training = SourceData(
            source.name, source.features[others], source.labels[others], source.classes
        )
        scores = fit_source(training, seed).scores(source.features[judged])
        confidence[judged] = np.exp(scores[np.arange(len(judged)), source.labels[judged]])
    return confidence
