"""What the labels of auxiliary sources mean for the primary classes, with intervals and as
sentences.

`run.py` calls `translations` at the end, for leaderboard.json. The report shows the tables, and the
terminal prints the clearest sentence of each source.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from attittud_lab.data.tasks import mix
from attittud_lab.learners import Numbers
from attittud_lab.portfolio import words
from attittud_lab.portfolio.intervals import FEWEST_GROUPS
from attittud_lab.portfolio.simple import SimpleCandidates
from attittud_lab.portfolio.standing import rank, usable
from attittud_lab.uses.base import SourceModels, own_meanings
from attittud_lab.uses.landmarks import with_fewer_columns
from attittud_lab.uses.problem import LabelNumbers, Problem, SourceData
from attittud_lab.uses.translated import Translation, label_shares

DRAWS = 200
"""How many draws of the primary labels an interval is made from."""
MOST_NAMES = 25
"""With more classes or labels there is no room for a matrix, here and for the confusions of the
report: the largest entries are listed.
"""
LISTED = 12
"""Rows of such a list."""
PERMUTATIONS, MANY = 10, 5000
"""Permutations of the labels in each draw. With more labels than the second number one is
enough.
"""
SENTENCES = 5
"""The clearest translations of a source, at most."""
_CLOSED = 1e-12
"""A mutual information below this is rounding."""


def translations(
    simple: SimpleCandidates, groups: Sequence[str] | None, seed: int
) -> list[dict[str, Any]]:
    """Return the table of each source that has labels, for leaderboard.json.

    `groups` are those of the primary examples, if there are any. Sources are translated on the
    features of the best simple candidate.
    """
    features, problem = best_problem(simple)
    if problem is None:
        return []
    counts = draw_counts(len(problem.labels), groups, mix(seed, "translations"))
    models = SourceModels(problem.sources, simple.seed)
    tables = []
    for source in problem.sources.values():
        table = translate(problem, source, models, counts, simple.seed)
        tables.append({"features": features, **table})
    return tables


def best_problem(simple: SimpleCandidates) -> tuple[str, Problem | None]:
    """Return the features of the best simple candidate and the problem on them, with fewer columns
    where they are sparse; the problem is None if there is no candidate.
    """
    best = max(usable(simple.standings.values()), key=rank, default=None)
    if best is None:
        return "", None
    features = simple.candidates[best.label].features
    return features, with_fewer_columns(simple.problems[features], simple.seed)


# --------------------------------------------------------------------------------------- one source


def translate(
    problem: Problem, source: SourceData, models: SourceModels, counts: Numbers | None, seed: int
) -> dict[str, Any]:
    """Return the table of a source.

    Rows are the primary classes, and columns the labels of the source. An entry is C[c, a] of the
    label channel. Where an example has several labels at once, each label is a yes/no question with
    a channel of its own, and an entry is the probability of yes for an example with yes.
    """
    translation = Translation.estimate(source, problem, models, seed)
    matrix = translation.channel.matrix.numpy()
    openness = translation.channel.openness.numpy()
    probabilities = source_probabilities(problem, source, models)
    shares = label_shares(source.labelled)
    if not source.several:
        matrix = matrix[None]
        openness = openness[None]
        probabilities = probabilities[:, None]
        shares = shares[None]
    labels = problem.labels
    if not problem.several:
        matrix = matrix[:, None]
        openness = openness[:, None]
        labels = labels[:, None]
    # matrix: sources x tasks x classes x labels; openness: sources x tasks
    cells: list[Cell] = []
    channels = []
    for number, task in np.ndindex(openness.shape):
        channel = Channel(
            matrix[number, task],
            float(openness[number, task]),
            shares[number],
            probabilities[:, number],
            labels[:, task],
        )
        drawn = channel.drawn(counts)
        questions = []
        rows: Iterable[int] = range(len(channel.matrix))
        columns: Iterable[int] = range(len(channel.shares))
        # A yes/no question shows only yes: in the row of the task, the column of the source.
        moved = {}
        if problem.several:
            questions.append(str(problem.classes[task]))
            rows = [1]
            moved["row"] = task
        if source.several:
            questions.append(str(source.classes[number]))
            columns = [1]
            moved["column"] = number
        for cell in channel.cells(drawn, rows, columns):
            cells.append(replace(cell, **moved))
        channels.append({"of": questions, **_estimate(channel.openness, drawn.openness)})
    own = own_meanings(source.labelled, seed)
    return _table(problem, source, channels, cells, own)


def source_probabilities(problem: Problem, source: SourceData, models: SourceModels) -> Numbers:
    """Return what the source's model predicts for primary examples.

    Shape n x labels; with several labels at once n x labels x 2, for no and yes.
    """
    scores = models.model(source.name).scores(problem.features)
    if not source.several:
        return np.asarray(np.exp(scores))
    yes = 0.5 * (1 + np.tanh(0.5 * scores))
    return np.stack([1 - yes, yes], axis=-1)


Estimate = dict[str, Any]
"""A value with the ends `low` and `high` of its 95 % interval, None where there is no interval."""


@dataclass(frozen=True)
class Cell:
    """How often a primary class has an auxiliary label, and what the label means."""

    row: int
    column: int
    value: Estimate
    """C[c, a]."""
    meaning: Estimate
    """p(c|a) ∝ C[c, a] times the share of c: the share of class c among examples with this
    label.
    """
    clearness: float
    """How far the low end of the meaning is above the share of class c; -inf if the channel may be
    closed.
    """
    spread: float
    """π(a), the share of the label in the source: what the value is compared with."""


@dataclass(frozen=True)
class Drawn:
    """A channel in each draw of the primary labels; empty arrays without draws."""

    openness: Numbers
    matrix: Numbers
    """draws x classes x labels."""
    meaning: Numbers


@dataclass(frozen=True)
class Channel:
    """One label channel with the predictions and labels that it was estimated from."""

    matrix: Numbers
    """C, classes x labels."""
    openness: float
    shares: Numbers
    """π, one for each label."""
    probabilities: Numbers
    """p_s(a|x) for the primary examples, n x labels."""
    labels: LabelNumbers
    """Class numbers of the primary examples, n; -1 where there is none."""

    def drawn(self, counts: Numbers | None) -> Drawn:
        """Estimate the channel again in each draw; `counts` says how often an example was drawn,
        draws x n.

        Copies of an example raise the mutual information I of a draw, and also that of permuted
        labels, Ī. So the information beyond chance is T = I − Ī of the same draw, and with the Ī of
        all examples λ = max(0, T / (T + Ī)). For all examples this is 1 − Ī / I.
        """
        classes, width = self.matrix.shape
        if counts is None:
            nothing = np.empty((0, classes, width))
            return Drawn(np.empty(0), nothing, nothing)
        by_chance = self.information_by_chance(np.ones((1, counts.shape[1])))[0]
        sums = self.sums(counts, self.labels)
        beyond = (information(sums) - self.information_by_chance(counts)).clip(min=0)
        openness = beyond / np.maximum(beyond + by_chance, _CLOSED)
        sizes = self.class_counts(counts)
        estimate = (sums + self.shares) / (sizes + 1)[:, :, None]
        weight = openness[:, None, None]
        matrix = weight * estimate + (1 - weight) * self.shares
        return Drawn(openness, matrix, meanings(matrix, sizes))

    def information_by_chance(self, counts: Numbers) -> Numbers:
        """Return the mean mutual information in each draw over permutations of the labels."""
        observed = np.flatnonzero(self.labels >= 0)
        generator = np.random.default_rng(len(observed))
        permutations = PERMUTATIONS
        if len(observed) > MANY:
            permutations = 1
        total = np.zeros(len(counts))
        for _ in range(permutations):
            labels = self.labels.copy()
            labels[observed] = generator.permutation(labels[observed])
            total += information(self.sums(counts, labels))
        return total / permutations

    def sums(self, counts: Numbers, labels: LabelNumbers) -> Numbers:
        """Sum the probabilities of the examples of each class: draws x classes x labels."""
        parts = []
        for number in range(len(self.matrix)):
            rows = labels == number
            parts.append(counts[:, rows] @ self.probabilities[rows])
        return np.stack(parts, axis=1)

    def class_counts(self, counts: Numbers) -> Numbers:
        """Count the examples of each class: draws x classes."""
        sizes = []
        for number in range(len(self.matrix)):
            sizes.append(counts[:, self.labels == number].sum(axis=1))
        return np.stack(sizes, axis=1)

    def cells(self, drawn: Drawn, rows: Iterable[int], columns: Iterable[int]) -> Iterator[Cell]:
        """Yield these entries of the matrix, row by row, with intervals from the draws."""
        sizes = self.class_counts(np.ones((1, len(self.labels))))
        class_shares = sizes[0] / max(1.0, sizes.sum())
        matrix_of_meanings = meanings(self.matrix[None], sizes)[0]
        lowest_openness = _estimate(self.openness, drawn.openness)["low"]
        is_open = lowest_openness is not None and lowest_openness > 0
        for row, column in product(rows, columns):
            value = _estimate(self.matrix[row, column], drawn.matrix[:, row, column])
            meaning = _estimate(matrix_of_meanings[row, column], drawn.meaning[:, row, column])
            clearness = -math.inf
            if is_open and meaning["low"] is not None:
                clearness = meaning["low"] - class_shares[row]
            yield Cell(row, column, value, meaning, clearness, float(self.shares[column]))


def meanings(matrix: Numbers, sizes: Numbers) -> Numbers:
    """Return p(c|a) ∝ C[c, a] n_c for each label, from draws x classes x labels and draws x
    classes.
    """
    joint = matrix * sizes[:, :, None]
    return np.asarray(joint / np.maximum(joint.sum(axis=1, keepdims=True), _CLOSED))


def information(sums: Numbers) -> Numbers:
    """Return the mutual information of class and label, in nats, of draws x classes x labels
    sums.
    """
    total = np.maximum(sums.sum(axis=(1, 2), keepdims=True), _CLOSED)
    joint = sums / total
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=2, keepdims=True)
    ratio = np.where(joint > 0, joint / np.where(independent > 0, independent, 1), 1.0)
    return np.asarray((joint * np.log(ratio)).sum(axis=(1, 2)))


def draw_counts(examples: int, groups: Sequence[str] | None, seed: int) -> Numbers | None:
    """Draw the examples with replacement, or whole groups of them, and count how often each was
    drawn.

    Returns draws x n; None if there are too few groups for an interval.
    """
    generator = np.random.default_rng(seed)
    if groups is None:
        number_of: npt.NDArray[np.int64] = np.arange(examples)
    else:
        number_of = np.unique(groups, return_inverse=True)[1]
        if number_of.max() + 1 < FEWEST_GROUPS:
            return None
    units = int(number_of.max()) + 1
    counts = np.empty((DRAWS, examples))
    for draw in range(DRAWS):
        drawn = np.bincount(generator.integers(units, size=units), minlength=units)
        counts[draw] = drawn[number_of]
    return counts


def _estimate(value: float, draws: Numbers) -> Estimate:
    """Return a value with the ends of its 95 % interval, which contains the value itself."""
    value = float(value)
    if not len(draws):
        return {"value": value, "low": None, "high": None}
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"value": value, "low": min(float(low), value), "high": max(float(high), value)}


# -------------------------------------------------------------------------------------- the content


def _table(
    problem: Problem,
    source: SourceData,
    channels: list[dict[str, Any]],
    cells: list[Cell],
    own: Numbers,
) -> dict[str, Any]:
    """Return what leaderboard.json says about a source; `own` has what its labels mean by its own
    labels.
    """
    if problem.several:
        sizes = (problem.labels == 1).sum(axis=0)
    else:
        sizes = np.bincount(problem.labels[problem.labels >= 0], minlength=len(problem.classes))
    small = max(len(problem.classes), len(source.classes)) <= MOST_NAMES
    shown = cells
    if not small:
        shown = sorted(cells, key=lambda cell: cell.spread - cell.value["value"])[:LISTED]
    entries = []
    for cell in shown:
        place = {"class": cell.row, "label": cell.column}
        entries.append({**place, **cell.value, "meaning": cell.meaning["value"]})
    return {
        "source": source.name,
        "classes": list(map(str, problem.classes)),
        "counts": sizes.tolist(),
        "labels": list(map(str, source.classes)),
        "several": problem.several or source.several,
        "openness": channels,
        "whole": small,
        "entries": entries,
        "sentences": _sentences(problem, source, cells, own),
    }


def _sentences(
    problem: Problem, source: SourceData, cells: list[Cell], own: Numbers
) -> list[dict[str, Any]]:
    """Return the clearest translations, one for each label at most.

    A translation is clear if its channel is open, and if the whole interval of its meaning is above
    the share of the class.
    """
    best: dict[int, Cell] = {}
    for cell in cells:
        if cell.clearness <= 0:
            continue
        best_so_far = best.setdefault(cell.column, cell)
        if cell.meaning["value"] > best_so_far.meaning["value"]:
            best[cell.column] = cell
    clearest = sorted(best.values(), key=lambda cell: cell.clearness, reverse=True)
    sentences = []
    for cell in clearest[:SENTENCES]:
        label = str(source.classes[cell.column])
        name = str(problem.classes[cell.row])
        share: float | None = None
        if not math.isnan(own[cell.column]):
            share = float(own[cell.column])
        text = words.translation(source.name, label, name, cell.meaning, share)
        sentence = {"label": label, "class": name, **cell.meaning, "own": share, "text": text}
        sentences.append(sentence)
    return sentences
